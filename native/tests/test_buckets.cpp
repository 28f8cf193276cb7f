// Buckets over real MPI: every algorithm and element type on communicators of 1 to 16 ranks, polled and by the thread.
// Whole numbers are summed, which all types hold exactly, so the right values are known.
#include <mpi.h>

#include <cstring>
#include <memory>
#include <vector>

#include "../bucket.hpp"
#include "../kernels.hpp"
#include "../progress.hpp"
#include "check.hpp"

namespace hpcpipe::testing {

namespace {

std::vector<unsigned char> of_type(Element element, const std::vector<float>& values) {
  std::vector<unsigned char> bytes(values.size() * size_of(element));
  convert(element, bytes.data(), Element::float32, values.data(), values.size());
  return bytes;
}

float value(int rank, std::size_t i) { return static_cast<float>((static_cast<std::size_t>(rank) + i) % 7); }

void check_bucket(const std::shared_ptr<Group>& group, Element element, Choices choices, std::size_t block, bool threaded) {
  const int rank = group->comm().rank(), ranks = group->comm().size();
  const std::size_t length = block * static_cast<std::size_t>(ranks);
  std::vector<float> mine(length), sums(length);
  for (std::size_t i = 0; i < length; ++i) {
    mine[i] = value(rank, i);
    for (int other = 0; other < ranks; ++other) sums[i] += value(other, i);
  }
  auto data = of_type(element, mine);
  const auto wanted = of_type(element, sums);
  const auto bucket = std::make_shared<Bucket>(group, element, data.data(), length, choices, threaded);
  for (int repeat = 0; repeat < (ranks <= 4 ? 2 : 1); ++repeat) {
    const auto given = of_type(element, mine);
    std::copy(given.begin(), given.end(), data.begin());
    bucket->start(Work::reduce_scatter);
    CHECK(bucket->wait_for(Poll::yield, 60.0), "rank %d of %d", rank, ranks);
    const std::size_t begin = bucket->shard_begin() * size_of(element), size = block * size_of(element);
    CHECK(std::equal(data.begin() + static_cast<std::ptrdiff_t>(begin),
                     data.begin() + static_cast<std::ptrdiff_t>(begin + size),
                     wanted.begin() + static_cast<std::ptrdiff_t>(begin)),
          "the reduce-scatter (%s, %s), rank %d of %d", name_of(choices.reduce_scatter), name_of(element), rank, ranks);
    bucket->start(Work::all_gather);
    CHECK(bucket->wait_for(Poll::yield, 60.0), "rank %d of %d", rank, ranks);
    CHECK(data == wanted, "the all-gather (%s, %s), rank %d of %d", name_of(choices.all_gather), name_of(element), rank, ranks);
    std::copy(given.begin(), given.end(), data.begin());
    bucket->start(Work::all_reduce);
    CHECK(bucket->wait_for(Poll::sleep, 60.0), "rank %d of %d", rank, ranks);
    CHECK(data == wanted, "the all-reduce (%s), rank %d of %d", name_of(element), rank, ranks);
  }
  bucket->free();
}

void check_communicator(MPI_Comm comm, bool threaded) {
  const auto group = std::make_shared<Group>(comm);
  for (Algorithm algorithm : {Algorithm::ring, Algorithm::recursive, Algorithm::direct}) {
    for (Element element : {Element::float32, Element::float64, Element::float16, Element::bfloat16}) {
      if (group->comm().size() > 4 && element != Element::bfloat16) continue;  // many ranks share few cores here
      check_bucket(group, element, {algorithm, algorithm, 24}, 10, threaded);
    }
    check_bucket(group, Element::float32, {algorithm, algorithm, 0}, 9001, threaded);
  }
  group->free();
}

}  // namespace

}  // namespace hpcpipe::testing

int main(int argc, char** argv) {
  using namespace hpcpipe::testing;
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int size = 1; size <= ranks; ++size) {  // the world's last ranks, so that numbers differ from the world's
    MPI_Comm part;
    MPI_Comm_split(MPI_COMM_WORLD, rank >= ranks - size ? 0 : MPI_UNDEFINED, rank, &part);
    if (part == MPI_COMM_NULL) continue;
    check_communicator(part, false);
    if (ranks <= 4 && hpcpipe::has_thread_multiple()) check_communicator(part, true);
    MPI_Comm_free(&part);
  }
  hpcpipe::Progress::instance().stop();
  if (rank == 0) std::printf("buckets on 1 to %d ranks hold what they should\n", ranks);
  MPI_Finalize();
}
