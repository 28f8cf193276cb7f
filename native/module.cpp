// The bindings of hpcpipe._native and nothing else: arguments are checked here, the work is done by code without Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bucket.hpp"
#include "elements.hpp"
#include "fusion.hpp"
#include "kernels.hpp"
#include "mpi_util.hpp"
#include "progress.hpp"

namespace nb = nanobind;
using namespace hpcpipe;

namespace {

using Array = nb::ndarray<>;
using ReadOnlyArray = nb::ndarray<nb::ro>;

constexpr Element kElements[] = {Element::float32, Element::float64, Element::float16, Element::bfloat16};

bool is_element(nb::dlpack::dtype type, Element element) {
  const auto code = element == Element::bfloat16 ? nb::dlpack::dtype_code::Bfloat : nb::dlpack::dtype_code::Float;
  return type.code == static_cast<std::uint8_t>(code) && type.bits == 8 * size_of(element) && type.lanes == 1;
}

// Of an array that as_array has accepted.
template <typename A>
Element element_of(const A& array) {
  for (Element element : kElements) {
    if (is_element(array.dtype(), element)) return element;
  }
  throw nb::type_error("another type of element than float32, float64, float16 or bfloat16");
}

// numpy arrays and torch tensors alike, without ever copying; what does not fit is refused with a sentence.
template <typename A>
A as_array(nb::handle object, const std::string& what) {
  A array;
  if (!nb::try_cast(object, array, false)) {
    throw nb::type_error((what + " (" + std::string(nb::inst_name(object).c_str()) + ") is not a" +
                          (std::is_same_v<A, Array> ? " writable" : "") + " numpy array or torch tensor without gradient")
                             .c_str());
  }
  if (array.device_type() != nb::device::cpu::value && array.device_type() != nb::device::cuda_host::value) {
    throw nb::type_error((what + " is not in the memory of the CPU: copy it there first").c_str());
  }
  const auto is_type = [&](Element element) { return is_element(array.dtype(), element); };
  if (std::none_of(std::begin(kElements), std::end(kElements), is_type)) {
    throw nb::type_error((what + " has " + std::to_string(array.dtype().bits) +
                          "-bit elements of another type: it must be float32, float64, float16 or bfloat16")
                             .c_str());
  }
  std::int64_t stride = 1;
  for (std::size_t axis = array.ndim(); axis-- > 0 && array.size() > 0;) {
    if (array.shape(axis) != 1 && array.stride(axis) != stride) {
      throw nb::value_error((what + " is not contiguous: call contiguous() (torch) or ascontiguousarray (numpy)").c_str());
    }
    stride *= static_cast<std::int64_t>(array.shape(axis));
  }
  return array;
}

template <typename A>
A as_flat(nb::handle object) {
  A flat = as_array<A>(object, "the flat buffer");
  if (flat.ndim() != 1) {
    throw nb::value_error(("the flat buffer has " + std::to_string(flat.ndim()) + " dimensions: it must have one").c_str());
  }
  return flat;
}

// The arrays of a list; they hold the memory while the pieces point to it.
template <typename A, typename P>
struct Pieces {
  explicit Pieces(const nb::list& tensors) {
    arrays.reserve(nb::len(tensors));
    pieces.reserve(nb::len(tensors));
    for (nb::handle tensor : tensors) {
      arrays.push_back(as_array<A>(tensor, "tensor " + std::to_string(arrays.size())));
      pieces.push_back({element_of(arrays.back()), arrays.back().data(), arrays.back().size()});
    }
  }
  std::vector<A> arrays;
  std::vector<P> pieces;
};

void bind_pack(const nb::list& tensors, nb::handle flat, bool accumulate) {
  const Pieces<ReadOnlyArray, ConstPiece> from(tensors);
  const Array into = as_flat<Array>(flat);
  const Piece piece{element_of(into), into.data(), into.size()};
  nb::gil_scoped_release unlocked;
  pack(from.pieces, piece, accumulate);
}

void bind_unpack(nb::handle flat, const nb::list& tensors) {
  const ReadOnlyArray from = as_flat<ReadOnlyArray>(flat);
  const Pieces<Array, Piece> into(tensors);
  const ConstPiece piece{element_of(from), from.data(), from.size()};
  nb::gil_scoped_release unlocked;
  unpack(piece, into.pieces);
}

double bind_square_sum(nb::handle flat) {
  const ReadOnlyArray from = as_flat<ReadOnlyArray>(flat);
  nb::gil_scoped_release unlocked;
  return square_sum(element_of(from), from.data(), from.size());
}

std::shared_ptr<Group> make_group(std::uintptr_t communicator_address) {
  const MPI_Comm comm = communicator_at(communicator_address);
  nb::gil_scoped_release unlocked;
  return std::make_shared<Group>(comm);
}

// A bucket together with the array it works on, which must live as long as MPI may touch it.
class BoundBucket {
 public:
  BoundBucket(std::shared_ptr<Group> group, nb::handle flat, const std::string& reduce_scatter,
              const std::string& all_gather, std::size_t chunk_bytes, bool threaded)
      : flat_(as_flat<Array>(flat)) {
    const Choices choices{algorithm_from_name(reduce_scatter), algorithm_from_name(all_gather), chunk_bytes};
    bucket_ = std::make_shared<Bucket>(std::move(group), element_of(flat_), flat_.data(), flat_.size(), choices, threaded);
  }
  ~BoundBucket() {
    if (bucket_->busy()) new Array(std::move(flat_));
  }
  Bucket& bucket() { return *bucket_; }

  template <Work work>
  void start() {
    nb::gil_scoped_release unlocked;
    bucket_->start(work);
  }

  bool test() {
    nb::gil_scoped_release unlocked;
    return bucket_->test();
  }

  void wait(const std::string& poll_name) {
    const Poll poll = poll_from_name(poll_name);
    for (bool done = false; !done;) {
      {
        nb::gil_scoped_release unlocked;
        done = bucket_->wait_for(poll, 0.05);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

 private:
  Array flat_;
  std::shared_ptr<Bucket> bucket_;
};

void stop_progress() {
  nb::gil_scoped_release unlocked;
  Progress::instance().stop();
}

nb::dict build_config() {
  nb::dict config;
  config["compiler"] = compiler();
  config["kernels"] = kernel_set();
  config["mpi_vendor"] = mpi_vendor();
  config["mpi_version"] = mpi_header_version();
  config["mpi_library_path"] = mpi_library_path();
  config["mpi_library_version"] = mpi_library_version();
  return config;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a failing program holds its objects in a traceback: not worth a second message
  nb::exception<MpiError>(m, "MpiError", PyExc_RuntimeError);

  m.def("build_config", &build_config);
  m.def("comm_size_bytes", [] { return sizeof(MPI_Comm); });
  m.def("library_path", &mpi_library_path);
  m.def("pack", &bind_pack, nb::arg("tensors"), nb::arg("flat"), nb::arg("accumulate"));
  m.def("square_sum", &bind_square_sum, nb::arg("flat"));
  m.def("unpack", &bind_unpack, nb::arg("flat"), nb::arg("tensors"));

  m.def("has_thread_multiple", &has_thread_multiple);
  m.def("stop_progress", &stop_progress);

  nb::class_<Group>(m, "Group")
      .def(nb::new_(&make_group), nb::arg("communicator_address"))
      .def("free", &Group::free, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<BoundBucket>(m, "Bucket")
      .def(nb::init<std::shared_ptr<Group>, nb::handle, const std::string&, const std::string&, std::size_t, bool>(),
           nb::arg("group"), nb::arg("flat"), nb::kw_only(), nb::arg("reduce_scatter") = "ring",
           nb::arg("all_gather") = "ring", nb::arg("chunk_bytes") = 0, nb::arg("threaded") = false)
      .def("start_reduce_scatter", &BoundBucket::start<Work::reduce_scatter>)
      .def("start_all_gather", &BoundBucket::start<Work::all_gather>)
      .def("start_all_reduce", &BoundBucket::start<Work::all_reduce>)
      .def("test", &BoundBucket::test)
      .def("wait", &BoundBucket::wait, nb::arg("poll"))
      .def("free", [](BoundBucket& bound) { bound.bucket().free(); })
      .def_prop_ro("shard_begin", [](BoundBucket& bound) { return bound.bucket().shard_begin(); })
      .def_prop_ro("shard_end", [](BoundBucket& bound) { return bound.bucket().shard_end(); });
}
