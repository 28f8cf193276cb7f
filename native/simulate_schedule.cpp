// Turns orders into the tables that the hot loop reads: followers, places in the order, places in a lane.
#include "simulate_schedule.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace hpcpipe::simulate {

namespace {

const Shape& checked(const Shape& shape) {
  if (shape.stages < 1 || shape.chunks < 1 || shape.microbatches < 1) {
    throw std::invalid_argument(std::to_string(shape.stages) + " stages of " + std::to_string(shape.chunks) +
                                " chunks with " + std::to_string(shape.microbatches) +
                                " micro-batches: at least 1 of each is needed");
  }
  const auto too_many = std::numeric_limits<Code>::max() / (kKinds + 1);
  if (std::int64_t{shape.chunks} * shape.microbatches > too_many || std::int64_t{shape.chunks} * shape.stages > too_many ||
      shape.chunks > std::numeric_limits<std::uint16_t>::max()) {
    throw std::invalid_argument(std::to_string(shape.chunks) + " chunks on " + std::to_string(shape.stages) +
                                " stages with " + std::to_string(shape.microbatches) +
                                " micro-batches: a stage cannot number so many tasks");
  }
  return shape;
}

}  // namespace

Schedule::Schedule(const Shape& size, bool with_split, bool in_order)
    : shape(checked(size)), split(with_split), ordered(in_order), chained(with_split && in_order) {
  const int last = shape.virtual_stages() - 1;
  followers.reserve(2 * static_cast<std::size_t>(last + 1));
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (int kind : {kForward, kBackward}) {
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        const int here = shape.virtual_stage(stage, chunk);
        if (kind == kForward && here == last) {
          followers.push_back({stage, shape.lane(kBackward, chunk)});
        } else if (kind == kBackward && here == 0) {
          followers.push_back({-1, -1});
        } else {
          const int there = here + (kind == kForward ? 1 : -1);
          followers.push_back({shape.owner(there), shape.lane(kind, there / shape.stages)});
        }
      }
    }
  }
}

void Schedule::use_rule(const Rule& which) {
  is_rule = true;
  rule = which;
}

void Schedule::use_order(int stage, const Order& order, bool fixed) {
  is_rule = false;
  is_fixed = fixed;
  for (Code code : order) {
    if (code < 0 || code >= shape.codes()) {
      throw std::invalid_argument("stage " + std::to_string(stage) + ": the order has an unknown task");
    }
  }
  lengths.resize(shape.stages);
  lengths[stage] = static_cast<std::int32_t>(order.size());
  if (fixed) {
    orders.resize(shape.stages);
    orders[stage] = order;
    return;
  }
  const std::size_t codes = shape.codes();
  keys.resize(codes * shape.stages);
  std::int32_t* key = keys.data() + codes * stage;
  for (std::size_t code = 0; code < codes; ++code) {  // tasks that the order does not list come after it
    key[code] = lengths[stage] + static_cast<std::int32_t>(code % shape.microbatches);
  }
  for (std::size_t index = 0; index < order.size(); ++index) key[order[index]] = static_cast<std::int32_t>(index);
}

void Schedule::finish_orders() {
  const std::size_t lanes = static_cast<std::size_t>(shape.lanes()) * shape.stages;
  const std::size_t length = shape.microbatches;
  bool ascending = true;
  for (std::size_t lane = 0; lane < lanes && !keys.empty() && ascending; ++lane) {
    ascending = std::is_sorted(keys.begin() + lane * length, keys.begin() + (lane + 1) * length);
  }
  if (ascending) return;
  ranks.resize(keys.size());
  microbatches.resize(keys.size());
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t begin = lane * length;
    const auto first = microbatches.begin() + begin;
    std::iota(first, first + length, 0);
    std::stable_sort(first, first + length, [&](int a, int b) { return keys[begin + a] < keys[begin + b]; });
    for (std::size_t place = 0; place < length; ++place) {
      ranks[begin + microbatches[begin + place]] = static_cast<std::int32_t>(place);
    }
  }
}

}  // namespace hpcpipe::simulate
