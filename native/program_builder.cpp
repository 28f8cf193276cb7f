// See program_builder.hpp.
#include "program_builder.hpp"

#include <algorithm>
#include <utility>

namespace hpcpipe {

namespace {

bool overlap(const Place& a, const Place& b) {
  return a.scratch == b.scratch && a.begin < b.begin + b.length && b.begin < a.begin + a.length;
}

}  // namespace

std::vector<Place> ProgramBuilder::chunks(std::size_t first_block, std::size_t num_blocks) const {
  std::vector<Place> places;
  const std::size_t end = (first_block + num_blocks) * shape_.block;
  for (std::size_t begin = first_block * shape_.block; begin < end; begin += shape_.chunk) {
    places.push_back({false, begin, std::min(shape_.chunk, end - begin)});
  }
  return places;
}

std::size_t ProgramBuilder::add_request(bool sends, int peer, Place at) {
  program_.requests.push_back({sends, peer, at});
  slot_free_.push_back(0);
  return program_.requests.size() - 1;
}

std::size_t ProgramBuilder::add_slot(int peer, std::size_t length) {
  const std::size_t begin = program_.scratch;
  program_.scratch += length;
  return add_request(false, peer, {true, begin, length});
}

Place ProgramBuilder::slot(std::size_t request, std::size_t length) const {
  return {true, program_.requests[request].at.begin, length};
}

void ProgramBuilder::send(int peer, Place at) {
  std::size_t after = 0;
  for (auto written = written_.rbegin(); written != written_.rend() && after == 0; ++written) {
    if (overlap(written->at, at)) after = written->end;
  }
  program_.sends.push_back({add_request(true, peer, at), after});
}

void ProgramBuilder::receive(int peer, Place at) {
  program_.receives.push_back({add_request(false, peer, at), at.length, 0, program_.reductions.size()});
  written_.push_back({at, program_.receives.size()});
}

void ProgramBuilder::receive_into_slot(std::size_t request, std::size_t length,
                                       const std::vector<Reduction>& reductions) {
  const std::size_t number = program_.receives.size();
  filled_.push_back(request);
  for (const Reduction& reduction : reductions) {
    program_.reductions.push_back(reduction);
    written_.push_back({reduction.into, number + 1});
  }
  program_.receives.push_back({request, length, slot_free_[request], program_.reductions.size()});
  if (reductions.empty()) return;
  for (std::size_t slot : filled_) slot_free_[slot] = number + 1;
  filled_.clear();
}

}  // namespace hpcpipe
