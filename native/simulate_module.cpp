// The bindings of hpcpipe._simulate and nothing else. No MPI: simulations run where starting MPI would abort.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "simulate_draws.hpp"
#include "simulate_schedule.hpp"
#include "simulate_step.hpp"

namespace nb = nanobind;
using namespace hpcpipe::simulate;

namespace {

constexpr std::size_t kEventsBetweenSignals = std::size_t{1} << 20;

template <typename T>
using In = nb::ndarray<const T, nb::device::cpu>;
template <typename T>
using Flat = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A new numpy array that owns its memory.
template <typename T>
struct Out {
  explicit Out(std::vector<std::size_t> dimensions) : shape(std::move(dimensions)) {
    std::size_t size = 1;
    for (std::size_t length : shape) size *= length;
    data = new T[size];
    owner = nb::capsule(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  }
  nb::object array() const { return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner)); }

  std::vector<std::size_t> shape;
  T* data;
  nb::capsule owner;
};

void check_shape(const nb::ndarray<const std::int64_t, nb::device::cpu>& array, const char* what,
                 const std::vector<std::size_t>& wanted) {
  bool same = array.ndim() == wanted.size();
  for (std::size_t axis = 0; same && axis < wanted.size(); ++axis) same = array.shape(axis) == wanted[axis];
  if (same) return;
  std::string shape;
  for (std::size_t length : wanted) shape += (shape.empty() ? "" : ", ") + std::to_string(length);
  throw nb::value_error((std::string(what) + " must have the shape (" + shape + ")").c_str());
}

std::vector<Flat<std::int32_t>> as_orders(const nb::list& list) {
  std::vector<Flat<std::int32_t>> orders;
  for (nb::handle order : list) orders.push_back(nb::cast<Flat<std::int32_t>>(order));
  return orders;
}

void use_family(Schedule& schedule, const std::string& family, int k, bool fixed) {
  nb::gil_scoped_release unlocked;
  visit_orders(family, schedule.shape, k,
               [&](int stage, const Order& order) { schedule.use_order(stage, order, fixed); });
  schedule.finish_orders();
}

void use_orders(Schedule& schedule, const nb::list& list, bool fixed) {
  const std::vector<Flat<std::int32_t>> orders = as_orders(list);
  if (orders.size() != static_cast<std::size_t>(schedule.shape.stages)) {
    throw nb::value_error((std::to_string(orders.size()) + " orders for " + std::to_string(schedule.shape.stages) + " stages").c_str());
  }
  for (std::size_t stage = 0; stage < orders.size(); ++stage) {
    const auto& order = orders[stage];
    schedule.use_order(static_cast<int>(stage), Order(order.data(), order.data() + order.size()), fixed);
  }
  schedule.finish_orders();
}

nb::object family_orders(const std::string& family, int stages, int chunks, int microbatches, int k) {
  const Shape shape{stages, chunks, microbatches, false};
  nb::list orders;
  visit_orders(family, shape, k, [&](int, const Order& order) {
    Out<std::int32_t> out({order.size()});
    std::memcpy(out.data, order.data(), order.size() * sizeof(Code));
    orders.append(out.array());
  });
  return orders;
}

template <typename T>
std::uint8_t* append(std::uint8_t* to, const std::vector<T>& from) {
  const std::size_t bytes = from.size() * sizeof(T);
  if (bytes > 0) std::memcpy(to, from.data(), bytes);
  return to + bytes;
}

// The rows of every stage one after the other, as bytes, and where each stage's begin.
template <typename Rows>
nb::object rows_of(int stages, Rows rows) {
  static_assert(sizeof(Row) == 24 && sizeof(Message) == 32, "what hpcpipe/simulate/compiled.py views");
  std::vector<std::int64_t> offsets = {0};
  for (int stage = 0; stage < stages; ++stage) {
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(rows(stage).size()));
  }
  Out<std::uint8_t> out({static_cast<std::size_t>(offsets.back()) * sizeof(Row)});
  std::uint8_t* next = out.data;
  for (int stage = 0; stage < stages; ++stage) next = append(next, rows(stage));
  return nb::make_tuple(out.array(), offsets);
}

// The counts of buckets, [stage][RS, UPDATE, AG][bucket] and [stage][bucket], which must have the room.
Buckets as_buckets(const nb::ndarray<const std::int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>& durations,
                   const Flat<std::int64_t>& counts, bool replicated,
                   const nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& gathered, bool phased,
                   std::int64_t norm_ns, std::size_t stages) {
  Buckets buckets{std::vector<std::int64_t>(counts.data(), counts.data() + counts.size()),
                  replicated,
                  phased,
                  norm_ns,
                  durations.data(),
                  static_cast<std::int64_t>(durations.shape(2)),
                  gathered.data()};
  bool fits = counts.size() == stages && durations.shape(0) == stages && durations.shape(1) == kBucketKinds &&
              gathered.shape(0) == stages && gathered.shape(1) == durations.shape(2) &&
              buckets.most < (std::int64_t{1} << 20);
  for (std::int64_t count : buckets.counts) fits = fits && count >= 0 && count <= buckets.most;
  if (!fits) throw nb::value_error("counts of buckets must be 0 or more for every stage, with a duration for each bucket");
  return buckets;
}

nb::object messages_of(const Step& step) {
  Out<std::uint8_t> out({step.messages().size() * sizeof(Message)});
  append(out.data, step.messages());
  return out.array();
}

// The arrays that `hpcpipe._simulate.Schedule.run` is said to return in the .pyi.
nb::tuple run(const Schedule& schedule, const In<std::int64_t>& caps, const In<std::int64_t>& durations,
              const Flat<std::int64_t>& begin, const Link& link, nb::object arrival, std::int64_t agreement_ns,
              const nb::ndarray<const std::int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>& bucket_durations,
              const Flat<std::int64_t>& bucket_counts, bool replicated,
              const nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& gathered, bool phased,
              std::int64_t norm_ns, bool keep_rows) {
  const Shape& shape = schedule.shape;
  const auto stages = static_cast<std::size_t>(shape.stages);
  check_shape(caps, "caps", {stages, 2 + 2 * static_cast<std::size_t>(shape.chunks)});
  if (caps.stride(1) != 1 || (stages > 1 && caps.stride(0) != static_cast<std::int64_t>(caps.shape(1)))) {
    throw nb::value_error("caps must be contiguous");
  }
  if (begin.size() != stages) {
    throw nb::value_error((std::to_string(begin.size()) + " begins for " + std::to_string(stages) + " stages").c_str());
  }
  const bool weights = schedule.split || (durations.ndim() > 1 && durations.shape(1) == kKinds);
  check_shape(durations, "durations",
              {stages, weights ? std::size_t{kKinds} : std::size_t{kKinds} - 1, static_cast<std::size_t>(shape.chunks),
               static_cast<std::size_t>(shape.microbatches)});
  Network network{link, {}, agreement_ns};
  if (!arrival.is_none()) {
    network.arrival = [&arrival](int source, int target, Code code, std::int64_t now) {
      nb::gil_scoped_acquire locked;
      return nb::cast<std::int64_t>(arrival(source, target, code, now));
    };
  }
  Buckets buckets = as_buckets(bucket_durations, bucket_counts, replicated, gathered, phased, norm_ns, stages);
  const Durations table{durations.data(), durations.stride(0), durations.stride(1), durations.stride(2), durations.stride(3)};
  std::unique_ptr<Step> step;
  {
    nb::gil_scoped_release unlocked;
    step = std::make_unique<Step>(schedule, Caps{caps.data()}, table, begin.data(), std::move(network),
                                  std::move(buckets), keep_rows);
  }
  for (bool more = true; more;) {
    {
      nb::gil_scoped_release unlocked;
      more = step->advance(kEventsBetweenSignals);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  const std::vector<int> stuck = step->stuck();
  if (stuck.empty()) step->close();
  Out<std::int64_t> end({stages}), sums({stages, kTimeClasses}), in_flight({stages}), stash({stages});
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const int number = static_cast<int>(stage);
    std::memcpy(sums.data + stage * kTimeClasses, step->sums(number).data(), sizeof(step->sums(number)));
    end.data[stage] = step->end(number);
    in_flight.data[stage] = step->peak_in_flight(number);
    stash.data[stage] = step->peak_stash(number);
  }
  nb::object kept = nb::none();
  if (keep_rows) {
    kept = nb::make_tuple(rows_of(shape.stages, [&](int stage) -> const auto& { return step->rows(stage); }),
                          rows_of(shape.stages, [&](int stage) -> const auto& { return step->beside(stage); }),
                          messages_of(*step));
  }
  Out<std::int64_t> all_gathered({stages, bucket_durations.shape(2)});
  std::copy(step->gathered().begin(), step->gathered().end(), all_gathered.data);
  return nb::make_tuple(stuck, end.array(), sums.array(), in_flight.array(), stash.array(), all_gathered.array(), kept);
}

// Draws over the outer product of coordinates, hashed in the order given; `tail` ends every place.
template <typename Draw>
nb::object grid(std::uint64_t seed, const nb::list& coordinates, const std::vector<std::int64_t>& tail, Draw draw) {
  std::vector<Flat<std::int64_t>> axes;
  std::vector<std::size_t> shape;
  for (nb::handle axis : coordinates) {
    axes.push_back(nb::cast<Flat<std::int64_t>>(axis));
    shape.push_back(axes.back().size());
  }
  Out<double> out(shape);
  double* next = out.data;
  const auto fill = [&](const auto& self, std::size_t axis, const Place& place) -> void {
    if (axis == axes.size()) {
      Place end = place;
      for (std::int64_t number : tail) end = end.at(number);
      *next++ = draw(end);
      return;
    }
    for (std::size_t i = 0; i < axes[axis].size(); ++i) self(self, axis + 1, place.at(axes[axis].data()[i]));
  };
  {
    nb::gil_scoped_release unlocked;
    fill(fill, 0, Place(seed));
  }
  return out.array();
}

}  // namespace

NB_MODULE(_simulate, m) {
  nb::set_leak_warnings(false);

  m.def("families", &families);
  m.def("family_orders", &family_orders, nb::arg("family"), nb::kw_only(), nb::arg("stages"), nb::arg("chunks"),
        nb::arg("microbatches"), nb::arg("k"));
  m.def(
      "uniforms",
      [](std::uint64_t seed, const nb::list& coordinates, const std::vector<std::int64_t>& tail) {
        return grid(seed, coordinates, tail, [](const Place& place) { return place.uniform(); });
      },
      nb::arg("seed"), nb::arg("coordinates"), nb::arg("tail"));
  m.def(
      "lognormals",
      [](std::uint64_t seed, const nb::list& coordinates, double sigma) {
        return grid(seed, coordinates, {}, [sigma](const Place& place) { return place.lognormal(sigma); });
      },
      nb::arg("seed"), nb::arg("coordinates"), nb::arg("sigma"));

  nb::class_<Link>(m, "Link")
      .def(
          "__init__",
          [](Link* self, double base, double sigma, bool overtaking, bool duplex, std::int64_t occupied_ns,
             std::uint64_t seed, std::int64_t step) {
            new (self) Link{Link::Delay::lognormal, base, sigma, 1.0, 0.0, 1.0, overtaking, duplex, occupied_ns, seed, step};
          },
          nb::kw_only(), nb::arg("base") = 0.0, nb::arg("sigma") = 0.0, nb::arg("overtaking") = true,
          nb::arg("duplex") = true, nb::arg("occupied_ns") = 0, nb::arg("seed") = 0, nb::arg("step") = 0)
      .def(
          "use_bursts",
          [](Link& self, double every, double length, double factor) {
            self.delay = Link::Delay::bursts;
            self.every = every;
            self.length = length;
            self.factor = factor;
          },
          nb::kw_only(), nb::arg("every"), nb::arg("length"), nb::arg("factor"));

  nb::class_<Schedule>(m, "Schedule")
      .def(
          "__init__",
          [](Schedule* self, int stages, int chunks, int microbatches, bool v, bool split, bool ordered) {
            new (self) Schedule(Shape{stages, chunks, microbatches, v}, split, ordered);
          },
          nb::kw_only(), nb::arg("stages"), nb::arg("chunks"), nb::arg("microbatches"), nb::arg("v"), nb::arg("split"),
          nb::arg("ordered"))
      .def(
          "use_rule",
          [](Schedule& self, bool forward_first, bool rounds) {
            self.use_rule({forward_first ? kForward : kBackward, rounds});
          },
          nb::kw_only(), nb::arg("forward_first"), nb::arg("rounds"))
      .def("use_family", &use_family, nb::arg("family"), nb::kw_only(), nb::arg("k"), nb::arg("fixed"))
      .def("use_orders", &use_orders, nb::arg("orders"), nb::kw_only(), nb::arg("fixed"))
      .def("run", &run, nb::arg("caps"), nb::arg("durations"), nb::arg("begin"), nb::arg("link"), nb::arg("arrival").none(),
           nb::arg("agreement_ns"), nb::arg("bucket_durations"), nb::arg("bucket_counts"), nb::arg("replicated"),
           nb::arg("gathered"), nb::arg("phased"), nb::arg("norm_ns"), nb::arg("keep_rows"));
}
