// See mpi_util.hpp.
#include "mpi_util.hpp"

#include <dlfcn.h>

#include <cstring>
#include <sstream>

namespace hpcpipe {

namespace {

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace

void check(int code, MPI_Comm comm, const std::string& what, int peer) {
  if (code == MPI_SUCCESS) return;
  int rank = MPI_PROC_NULL;
  if (comm != MPI_COMM_NULL) MPI_Comm_rank(comm, &rank);
  std::string message = rank >= 0 ? "rank " + std::to_string(rank) + ": " : "";
  message += what;
  if (peer != kNoPeer) message += " with rank " + std::to_string(peer);
  throw MpiError(message + " failed: " + error_text(code));
}

MPI_Comm communicator_at(std::uintptr_t address) {
  MPI_Comm comm;
  std::memcpy(&comm, reinterpret_cast<const void*>(address), sizeof comm);
  return comm;
}

bool mpi_is_alive() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

bool has_thread_multiple() {
  int level = MPI_THREAD_SINGLE;
  return mpi_is_alive() && MPI_Query_thread(&level) == MPI_SUCCESS && level == MPI_THREAD_MULTIPLE;
}

std::string mpi_vendor() {
#if defined(OMPI_MAJOR_VERSION)
  return "openmpi";
#elif defined(MPICH_VERSION)
  return "mpich";
#else
  return "other";
#endif
}

std::string mpi_header_version() {
#if defined(OMPI_MAJOR_VERSION)
  return std::to_string(OMPI_MAJOR_VERSION) + "." + std::to_string(OMPI_MINOR_VERSION) + "." +
         std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return MPICH_VERSION;
#else
  return "standard " + std::to_string(MPI_VERSION) + "." + std::to_string(MPI_SUBVERSION);
#endif
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  std::istringstream first_line(all.substr(0, all.find('\n')));
  std::string joined;
  for (std::string word; first_line >> word;) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

std::string mpi_library_path() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<void*>(&MPI_Get_library_version), &info) != 0;
  return found && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

Communicator::Communicator(MPI_Comm parent) {
  if (parent == MPI_COMM_NULL) throw std::invalid_argument("the communicator is MPI_COMM_NULL");
  int is_inter = 0;
  MPI_Comm_test_inter(parent, &is_inter);
  if (is_inter != 0) throw std::invalid_argument("the communicator is an inter-communicator: a collective needs one group");
  check(MPI_Comm_dup(parent, &comm_), parent, "duplicating the communicator");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  void* value = nullptr;
  int is_set = 0;
  if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &is_set) == MPI_SUCCESS && is_set != 0) {
    last_tag_ = *static_cast<int*>(value);
  }
}

Communicator::~Communicator() = default;

void Communicator::free() {
  if (comm_ == MPI_COMM_NULL || !mpi_is_alive()) return;
  check(MPI_Comm_free(&comm_), comm_, "freeing the communicator");
}

void Requests::free() noexcept {
  if (!requests_.empty() && mpi_is_alive()) {
    for (MPI_Request& request : requests_) {
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
  }
  requests_.clear();
}

}  // namespace hpcpipe
