// See program_recursive.hpp. Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005): with q the greatest
// power of two, the first 2 (ranks - q) ranks form pairs whose odd one works for both; q ranks then exchange halves.
#include "program_recursive.hpp"

#include <algorithm>

#include "program_builder.hpp"

namespace hpcpipe {

namespace {

class Pairs {
 public:
  explicit Pairs(const Shape& shape) {
    while (2 * workers_ <= shape.ranks) workers_ *= 2;
    extra_ = shape.ranks - workers_;
    paired_ = shape.rank < 2 * extra_;
    idle_ = paired_ && shape.rank % 2 == 0;
    worker_ = paired_ ? shape.rank / 2 : shape.rank - extra_;
  }
  int workers() const { return workers_; }
  bool paired() const { return paired_; }
  bool idle() const { return idle_; }    // an even one of a pair, which takes part at the begin and the end only
  int worker() const { return worker_; }  // this rank's number among the workers
  int rank(int worker) const { return worker < extra_ ? 2 * worker + 1 : worker + extra_; }
  // The blocks of the workers before this one; one worker's blocks are neighbours.
  std::size_t first_block(int worker) const {
    return static_cast<std::size_t>(worker < extra_ ? 2 * worker : worker + extra_);
  }
  std::size_t num_blocks(int first, int end) const { return first_block(end) - first_block(first); }

 private:
  int workers_ = 1;
  int extra_ = 0;
  int worker_ = 0;
  bool paired_ = false;
  bool idle_ = false;
};

constexpr std::size_t kSlots = 4;

void receive_and_add(ProgramBuilder& builder, int peer, const std::vector<Place>& places, std::size_t longest) {
  std::vector<std::size_t> slots;
  for (std::size_t number = 0; number < places.size(); ++number) {
    if (number < kSlots) slots.push_back(builder.add_slot(peer, longest));
    const std::size_t slot = slots[number % kSlots];
    const Place& into = places[number];
    builder.receive_into_slot(slot, into.length, {{into, {builder.slot(slot, into.length), into}}});
  }
}

}  // namespace

std::vector<Program> recursive_halving(const Shape& shape) {
  const Pairs pairs(shape);
  const auto rank = static_cast<std::size_t>(shape.rank);
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  ProgramBuilder builder(shape), closing(shape);
  if (pairs.idle()) {  // what comes at the end overwrites what is sent at the begin, so it is a program of its own
    for (const Place& place : builder.chunks(0, ranks)) builder.send(shape.rank + 1, place);
    for (const Place& place : closing.chunks(rank, 1)) closing.receive(shape.rank + 1, place);
    return {builder.take(), closing.take()};
  }
  const std::size_t longest = std::min(shape.chunk, ranks * shape.block);
  if (pairs.paired()) receive_and_add(builder, shape.rank - 1, builder.chunks(0, ranks), longest);
  int first = 0, end = pairs.workers();
  while (end - first > 1) {
    const int half = (end - first) / 2;
    const bool lower = pairs.worker() < first + half;
    const int peer = pairs.rank(lower ? pairs.worker() + half : pairs.worker() - half);
    const auto part = [&](bool is_lower) {
      const int begin = is_lower ? first : first + half;
      return builder.chunks(pairs.first_block(begin), pairs.num_blocks(begin, begin + half));
    };
    for (const Place& place : part(!lower)) builder.send(peer, place);
    receive_and_add(builder, peer, part(lower), longest);
    first = lower ? first : first + half;
    end = first + half;
  }
  if (pairs.paired()) {
    for (const Place& place : builder.chunks(rank - 1, 1)) builder.send(shape.rank - 1, place);
  }
  return {builder.take()};
}

Program recursive_doubling(const Shape& shape) {
  const Pairs pairs(shape);
  const auto rank = static_cast<std::size_t>(shape.rank);
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  ProgramBuilder builder(shape);
  if (pairs.idle()) {
    for (const Place& place : builder.chunks(rank, 1)) builder.send(shape.rank + 1, place);
    for (const Place& place : builder.chunks(0, rank)) builder.receive(shape.rank + 1, place);
    for (const Place& place : builder.chunks(rank + 1, ranks - rank - 1)) builder.receive(shape.rank + 1, place);
    return builder.take();
  }
  if (pairs.paired()) {
    for (const Place& place : builder.chunks(rank - 1, 1)) builder.receive(shape.rank - 1, place);
  }
  for (int length = 1; length < pairs.workers(); length *= 2) {
    const int own = pairs.worker() / length * length, other = own ^ length;
    const int peer = pairs.rank(pairs.worker() ^ length);
    for (const Place& place : builder.chunks(pairs.first_block(own), pairs.num_blocks(own, own + length))) {
      builder.send(peer, place);
    }
    for (const Place& place : builder.chunks(pairs.first_block(other), pairs.num_blocks(other, other + length))) {
      builder.receive(peer, place);
    }
  }
  if (pairs.paired()) {
    for (const Place& place : builder.chunks(0, rank - 1)) builder.send(shape.rank - 1, place);
    for (const Place& place : builder.chunks(rank, ranks - rank)) builder.send(shape.rank - 1, place);
  }
  return builder.take();
}

}  // namespace hpcpipe
