// See program.hpp: ring and direct exchange, and which algorithm makes which program.
#include "program.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "program_builder.hpp"
#include "program_recursive.hpp"

namespace hpcpipe {

namespace {

constexpr std::size_t kSlots = 4;  // some chunks arrive while one is added

// Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009): in step s the block of rank - s - 1 goes to the next rank.
Program ring_reduce_scatter(const Shape& shape) {
  ProgramBuilder builder(shape);
  const int next = (shape.rank + 1) % shape.ranks, previous = (shape.rank + shape.ranks - 1) % shape.ranks;
  const auto block = [&](int lag) {
    return static_cast<std::size_t>((shape.rank + 2 * shape.ranks - lag) % shape.ranks);
  };
  const std::size_t longest = std::min(shape.chunk, shape.block);
  std::vector<std::size_t> slots;
  for (std::size_t slot = 0; slot < kSlots; ++slot) slots.push_back(builder.add_slot(previous, longest));
  std::size_t message = 0;
  for (int step = 0; step + 1 < shape.ranks; ++step) {
    for (const Place& place : builder.chunks(block(step + 1), 1)) builder.send(next, place);
    for (const Place& into : builder.chunks(block(step + 2), 1)) {
      const std::size_t slot = slots[message++ % kSlots];
      builder.receive_into_slot(slot, into.length, {{into, {builder.slot(slot, into.length), into}}});
    }
  }
  return builder.take();
}

Program ring_all_gather(const Shape& shape) {
  ProgramBuilder builder(shape);
  const int next = (shape.rank + 1) % shape.ranks, previous = (shape.rank + shape.ranks - 1) % shape.ranks;
  for (int step = 0; step + 1 < shape.ranks; ++step) {
    const int lag = (shape.rank + shape.ranks - step) % shape.ranks;
    for (const Place& place : builder.chunks(static_cast<std::size_t>(lag), 1)) builder.send(next, place);
    const auto block = static_cast<std::size_t>((lag + shape.ranks - 1) % shape.ranks);
    for (const Place& place : builder.chunks(block, 1)) builder.receive(previous, place);
  }
  return builder.take();
}

// Everybody sends each its part at once. A rank needs what comes from rank + 1 first, so it serves rank - 1 first.
Program direct_reduce_scatter(const Shape& shape) {
  ProgramBuilder builder(shape);
  const auto at = [&](int rank) { return (rank + shape.ranks) % shape.ranks; };
  const std::vector<Place> own = builder.chunks(static_cast<std::size_t>(shape.rank), 1);
  for (std::size_t chunk = 0; chunk < own.size(); ++chunk) {
    for (int distance = 1; distance < shape.ranks; ++distance) {
      const int peer = at(shape.rank - distance);
      builder.send(peer, builder.chunks(static_cast<std::size_t>(peer), 1)[chunk]);
    }
  }
  const std::size_t longest = std::min(shape.chunk, shape.block);
  std::vector<std::vector<std::size_t>> slots(std::min(kSlots, own.size()));
  for (auto& row : slots) {
    for (int distance = 1; distance < shape.ranks; ++distance) {
      row.push_back(builder.add_slot(at(shape.rank + distance), longest));
    }
  }
  for (std::size_t chunk = 0; chunk < own.size(); ++chunk) {
    Reduction reduction{own[chunk], {}};
    for (std::size_t slot : slots[chunk % slots.size()]) {
      reduction.sources.push_back(builder.slot(slot, own[chunk].length));
      const bool last = reduction.sources.size() == slots.front().size();
      if (last) reduction.sources.push_back(own[chunk]);
      builder.receive_into_slot(slot, own[chunk].length, last ? std::vector{reduction} : std::vector<Reduction>{});
    }
  }
  return builder.take();
}

Program direct_all_gather(const Shape& shape) {
  ProgramBuilder builder(shape);
  const auto at = [&](int rank) { return (rank + shape.ranks) % shape.ranks; };
  for (const Place& place : builder.chunks(static_cast<std::size_t>(shape.rank), 1)) {
    for (int distance = 1; distance < shape.ranks; ++distance) builder.send(at(shape.rank - distance), place);
  }
  for (int distance = 1; distance < shape.ranks; ++distance) {
    const int peer = at(shape.rank + distance);
    for (const Place& place : builder.chunks(static_cast<std::size_t>(peer), 1)) builder.receive(peer, place);
  }
  return builder.take();
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::ring:
      return "ring";
    case Algorithm::recursive:
      return "recursive";
    case Algorithm::direct:
      return "direct";
  }
  return "";
}

Algorithm algorithm_from_name(const std::string& name) {
  for (Algorithm algorithm : {Algorithm::ring, Algorithm::recursive, Algorithm::direct}) {
    if (name == name_of(algorithm)) return algorithm;
  }
  throw std::invalid_argument("the algorithm is '" + name + "': it must be ring, recursive or direct");
}

std::vector<Program> make_programs(Operation operation, Algorithm algorithm, const Shape& shape) {
  if (shape.ranks == 1 || shape.block == 0) return {};
  const bool reduces = operation == Operation::reduce_scatter;
  switch (algorithm) {
    case Algorithm::ring:
      return {reduces ? ring_reduce_scatter(shape) : ring_all_gather(shape)};
    case Algorithm::direct:
      return {reduces ? direct_reduce_scatter(shape) : direct_all_gather(shape)};
    case Algorithm::recursive:
      break;
  }
  if (reduces) return recursive_halving(shape);
  return {recursive_doubling(shape)};
}

}  // namespace hpcpipe
