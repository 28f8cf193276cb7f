// The orders of hpcpipe/plan/hints as task codes, for sizes at which tuples of Python objects take too long and too much
// room. Each says nothing that its Python twin does not; a property test holds them equal.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "simulate_schedule.hpp"

namespace hpcpipe::simulate {

namespace {

Order gpipe(const Shape& shape) {
  Order order;
  for (int kind : {kForward, kBackward}) {
    for (int m = 0; m < shape.microbatches; ++m) order.push_back(shape.code(kind, m, 0));
  }
  return order;
}

struct Pair {
  Kind kind;
  int microbatch;
};

std::vector<Pair> one_f_one_b(int warmup, int microbatches) {
  std::vector<Pair> order;
  order.reserve(2 * static_cast<std::size_t>(microbatches));
  warmup = std::min(microbatches, warmup);
  for (int m = 0; m < warmup; ++m) order.push_back({kForward, m});
  for (int m = warmup; m < microbatches; ++m) {
    order.push_back({kForward, m});
    order.push_back({kBackward, m - warmup});
  }
  for (int m = microbatches - warmup; m < microbatches; ++m) order.push_back({kBackward, m});
  return order;
}

Order kfkb(const Shape& shape, int k, int stage) {
  if (k < 1) throw std::invalid_argument("kfkb with k = " + std::to_string(k) + ": a group has at least 1 micro-batch");
  Order order;
  const int groups = (shape.microbatches - 1) / k + 1;
  for (const Pair& group : one_f_one_b(shape.stages - 1 - stage, groups)) {
    const std::int64_t begin = std::int64_t{group.microbatch} * k;
    const std::int64_t end = std::min<std::int64_t>(shape.microbatches, begin + k);
    for (std::int64_t m = begin; m < end; ++m) order.push_back(shape.code(group.kind, static_cast<int>(m), 0));
  }
  return order;
}

Order with_late_weights(const Shape& shape, int warmup, int held) {
  Order order;
  for (const Pair& task : one_f_one_b(warmup, shape.microbatches)) {
    order.push_back(shape.code(task.kind, task.microbatch, 0));
    if (task.kind == kBackward && task.microbatch >= held) {
      order.push_back(shape.code(kWeight, task.microbatch - held, 0));
    }
  }
  for (int m = std::max(0, shape.microbatches - held); m < shape.microbatches; ++m) {
    order.push_back(shape.code(kWeight, m, 0));
  }
  return order;
}

Order interleaved(const Shape& shape, int stage) {
  const std::int64_t stages = shape.stages, chunks = shape.chunks;
  const std::int64_t groups = (shape.microbatches + stages - 1) / stages;
  const std::int64_t length = groups * stages * chunks;
  // The i-th forward or backward of the filled-up order; -1 where the micro-batch does not exist.
  const auto task = [&](Kind kind, std::int64_t i) {
    const std::int64_t microbatch = i / (stages * chunks) * stages + i % stages;
    const std::int64_t turn = i / stages % chunks;
    if (microbatch >= shape.microbatches) return Code{-1};
    return shape.code(kind, static_cast<int>(microbatch), static_cast<int>(kind == kForward ? turn : chunks - 1 - turn));
  };
  Order order;
  const auto add = [&](Code code) {
    if (code >= 0) order.push_back(code);
  };
  const std::int64_t warmup = std::min(length, 2 * (stages - 1 - stage) + (chunks - 1) * stages);
  for (std::int64_t i = 0; i < warmup; ++i) add(task(kForward, i));
  for (std::int64_t i = warmup; i < length; ++i) {
    add(task(kForward, i));
    add(task(kBackward, i - warmup));
  }
  for (std::int64_t i = length - warmup; i < length; ++i) add(task(kBackward, i));
  return order;
}

}  // namespace

const std::vector<std::string>& families() {
  static const std::vector<std::string> names = {"gpipe", "1f1b", "kfkb", "interleaved", "zb-h1", "zb-h2", "zbv"};
  return names;
}

Order order_of_stage(const std::string& family, const Shape& shape, int k, int stage) {
  const int remaining = shape.stages - 1 - stage;
  if (family == "gpipe") return gpipe(shape);
  if (family == "1f1b") return kfkb(shape, 1, stage);
  if (family == "kfkb") return kfkb(shape, k, stage);
  if (family == "interleaved") return interleaved(shape, stage);
  if (family == "zb-h1") return with_late_weights(shape, remaining, stage);
  if (family == "zb-h2") return with_late_weights(shape, 2 * remaining, 2 * stage);
  throw std::invalid_argument("no order is called " + family);
}

// All stages run in step, one task a unit of time, as in hpcpipe/plan/hints/zbv.py; O((S + M) S).
std::vector<Order> zbv_orders(const Shape& shape) {
  struct Lane {
    Kind kind;
    int chunk;
  };
  static constexpr std::array<Lane, 4> priority = {{{kBackward, 0}, {kForward, 1}, {kForward, 0}, {kBackward, 1}}};
  static constexpr std::array<Lane, 2> weights = {{{kWeight, 1}, {kWeight, 0}}};
  Shape two = shape;
  two.chunks = 2;
  two.v = true;
  const int stages = two.stages, microbatches = two.microbatches, last = two.virtual_stages() - 1;
  const int room = 2 * stages;
  std::vector<Order> orders(stages);
  for (Order& order : orders) order.reserve(6 * static_cast<std::size_t>(microbatches));
  std::vector<std::array<std::array<int, 2>, kKinds>> counts(stages);
  for (auto& count : counts) count = {};
  std::vector<int> stash(stages, 0);

  const auto count_of = [&](int virtual_stage, Kind kind) {
    return counts[two.owner(virtual_stage)][kind][virtual_stage / stages];
  };
  const auto ready = [&](int stage, const Lane& lane) {
    const auto& mine = counts[stage];
    const int m = mine[lane.kind][lane.chunk];
    if (m == microbatches) return false;
    if (lane.kind == kWeight) return mine[kBackward][lane.chunk] > m;
    const int here = two.virtual_stage(stage, lane.chunk);
    if (lane.kind == kForward) return stash[stage] < room && (here == 0 || count_of(here - 1, kForward) > m);
    return mine[kForward][lane.chunk] > m && (here == last || count_of(here + 1, kBackward) > m);
  };
  const auto choose = [&](int stage) -> const Lane* {
    const bool nearly_full = stash[stage] >= room - 1;
    const auto among = [&](const auto& lanes) -> const Lane* {
      for (const Lane& lane : lanes) {
        if (ready(stage, lane)) return &lane;
      }
      return nullptr;
    };
    const Lane* found = nearly_full ? among(weights) : among(priority);
    return found != nullptr ? found : nearly_full ? among(priority) : among(weights);
  };

  std::vector<std::pair<int, const Lane*>> chosen;
  for (std::int64_t left = std::int64_t{6} * microbatches * stages; left > 0; left -= chosen.size()) {
    chosen.clear();
    for (int stage = 0; stage < stages; ++stage) {
      if (const Lane* lane = choose(stage)) chosen.emplace_back(stage, lane);
    }
    if (chosen.empty()) throw std::logic_error("zbv is stuck");
    for (const auto& [stage, lane] : chosen) {
      int& count = counts[stage][lane->kind][lane->chunk];
      orders[stage].push_back(two.code(lane->kind, count++, lane->chunk));
      stash[stage] += (lane->kind == kForward) - (lane->kind == kWeight);
    }
  }
  return orders;
}

}  // namespace hpcpipe::simulate
