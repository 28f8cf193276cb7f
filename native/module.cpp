// The bindings of hpcpipe._native and nothing else: arguments are checked here, the work is done by code without Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fusion.hpp"
#include "mpi_util.hpp"
#include "ring.hpp"

namespace nb = nanobind;
using namespace hpcpipe;

namespace {

using Array = nb::ndarray<>;
using ReadOnlyArray = nb::ndarray<nb::ro>;

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
  if (array.dtype() != nb::dtype<float>()) {
    throw nb::type_error((what + " has " + std::to_string(array.dtype().bits) +
                          "-bit elements of another type: it must be float32")
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
      pieces.push_back({static_cast<decltype(P::data)>(arrays.back().data()), arrays.back().size()});
    }
  }
  std::vector<A> arrays;
  std::vector<P> pieces;
};

void bind_pack(const nb::list& tensors, nb::handle flat, bool accumulate) {
  const Pieces<ReadOnlyArray, ConstPiece> from(tensors);
  const Array into = as_flat<Array>(flat);
  const Piece piece{static_cast<float*>(into.data()), into.size()};
  nb::gil_scoped_release unlocked;
  pack(from.pieces, piece, accumulate);
}

void bind_unpack(nb::handle flat, const nb::list& tensors) {
  const ReadOnlyArray from = as_flat<ReadOnlyArray>(flat);
  const Pieces<Array, Piece> into(tensors);
  const ConstPiece piece{static_cast<const float*>(from.data()), from.size()};
  nb::gil_scoped_release unlocked;
  unpack(piece, into.pieces);
}

// A ring together with the array it works on, which must live as long as MPI may touch it.
class BoundRing {
 public:
  BoundRing(std::uintptr_t communicator_address, nb::handle flat, std::size_t chunk) : flat_(as_flat<Array>(flat)) {
    const MPI_Comm comm = communicator_at(communicator_address);
    nb::gil_scoped_release unlocked;
    ring_ = std::make_unique<Ring>(comm, static_cast<float*>(flat_.data()), flat_.size(), chunk);
  }
  ~BoundRing() {
    if (ring_->busy()) new Array(std::move(flat_));
  }
  Ring& ring() { return *ring_; }

  void wait(const std::string& poll_name) {
    const Poll poll = poll_from_name(poll_name);
    for (bool done = false; !done;) {
      {
        nb::gil_scoped_release unlocked;
        done = ring_->wait_for(poll, 0.05);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

 private:
  Array flat_;
  std::unique_ptr<Ring> ring_;
};

template <auto Method>
auto unlocked(BoundRing& bound) {
  nb::gil_scoped_release release;
  return (bound.ring().*Method)();
}

nb::dict build_config() {
  nb::dict config;
  config["compiler"] = compiler();
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
  m.def("unpack", &bind_unpack, nb::arg("flat"), nb::arg("tensors"));

  nb::class_<BoundRing>(m, "Ring")
      .def(nb::init<std::uintptr_t, nb::handle, std::size_t>(), nb::arg("communicator_address"), nb::arg("flat"),
           nb::arg("chunk") = Ring::kDefaultChunk)
      .def("start_reduce_scatter", &unlocked<&Ring::start_reduce_scatter>)
      .def("start_all_gather", &unlocked<&Ring::start_all_gather>)
      .def("test", &unlocked<&Ring::test>)
      .def("wait", &BoundRing::wait, nb::arg("poll"))
      .def("free", &unlocked<&Ring::free>)
      .def_prop_ro("shard_begin", [](BoundRing& bound) { return bound.ring().shard_begin(); })
      .def_prop_ro("shard_end", [](BoundRing& bound) { return bound.ring().shard_end(); });
}
