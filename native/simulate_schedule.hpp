// A schedule as flat arrays, prepared once for many simulated steps: what hpcpipe/plan makes of tasks and hints, in
// numbers. Knows neither time nor Python.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hpcpipe::simulate {

using Code = std::int32_t;  // a task: (kind · chunks + chunk) · microbatches + microbatch; kind and chunk are its lane

enum Kind : int { kForward = 0, kBackward = 1, kWeight = 2, kKinds = 3 };  // the numbers of hpcpipe.plan.Kind

struct Shape {
  int stages = 1;
  int chunks = 1;
  int microbatches = 1;
  bool v = false;  // odd chunks run back from the last stage to the first

  int lanes() const { return kKinds * chunks; }
  Code codes() const { return lanes() * microbatches; }
  int lane(int kind, int chunk) const { return kind * chunks + chunk; }
  Code code(int kind, int microbatch, int chunk) const { return lane(kind, chunk) * microbatches + microbatch; }
  int virtual_stages() const { return stages * chunks; }
  int virtual_stage(int stage, int chunk) const {
    return chunk * stages + (v && chunk % 2 == 1 ? stages - 1 - stage : stage);
  }
  int owner(int virtual_stage) const {
    const int place = virtual_stage % stages;
    return v && virtual_stage / stages % 2 == 1 ? stages - 1 - place : place;
  }
};

using Order = std::vector<Code>;

// The names that `order` knows.
const std::vector<std::string>& families();

// The order of every stage, handed to `visit(stage, order)` one after the other; `k` is for kfkb only. Equal to
// hpcpipe/plan/hints, where each family is explained. Throws std::invalid_argument for a name that is none of `families`.
template <typename Visit>
void visit_orders(const std::string& family, const Shape& shape, int k, Visit visit);

Order order_of_stage(const std::string& family, const Shape& shape, int k, int stage);
std::vector<Order> zbv_orders(const Shape& shape);

template <typename Visit>
void visit_orders(const std::string& family, const Shape& shape, int k, Visit visit) {
  if (family == "zbv") {
    std::vector<Order> orders = zbv_orders(shape);
    for (int stage = 0; stage < shape.stages; ++stage) {
      visit(stage, orders[stage]);
      Order().swap(orders[stage]);
    }
    return;
  }
  for (int stage = 0; stage < shape.stages; ++stage) visit(stage, order_of_stage(family, shape, k, stage));
}

// Where the output of a forward or backward goes: to a stage and lane, or nowhere (stage -1).
struct Follower {
  std::int32_t stage;
  std::int32_t lane;
};

// A rule over what is ready (hpcpipe/plan/hints/rounds.py).
struct Rule {
  Kind first = kBackward;
  bool rounds = true;
};

class Schedule {
 public:
  Schedule(const Shape& shape, bool split, bool ordered);

  void use_rule(const Rule& rule);
  // An order a stage; `fixed` waits for its next task, otherwise it ranks what is ready.
  void use_order(int stage, const Order& order, bool fixed);
  // To be called when all orders are there.
  void finish_orders();

  const Shape shape;
  const bool split;
  const bool ordered;
  const bool chained;  // a weight gradient holds its stash until those before it are done

  bool is_rule = true;
  bool is_fixed = false;
  Rule rule;
  std::vector<Follower> followers;               // [stage][F, B][chunk]
  std::vector<std::vector<Code>> orders;         // fixed: the tasks of a stage, first to last
  std::vector<std::int32_t> lengths;             // how many tasks each stage's order has
  std::vector<std::int32_t> keys;                // ready: [stage][code] the place in the order
  std::vector<std::int32_t> ranks, microbatches;  // where an order does not take a lane's micro-batches ascending:
                                                  // [stage][code] the place in its lane, and what stands at a place
};

}  // namespace hpcpipe::simulate
