// MPI calls made safe for C++: failures become exceptions that name this rank and its peer; knows nothing of Python.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace hpcpipe {

constexpr int kNoPeer = -1;

// A failed MPI call; the text says on which rank and, where there is one, with which peer.
class MpiError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws MpiError unless `code` is MPI_SUCCESS; `what` names the work that failed.
void check(int code, MPI_Comm comm, const std::string& what, int peer = kNoPeer);

// Reads the communicator that an MPI_Comm variable at this address holds (what mpi4py's MPI._addressof gives).
MPI_Comm communicator_at(std::uintptr_t address);

// True between MPI_Init and MPI_Finalize: whether MPI objects may be freed now.
bool mpi_is_alive();
bool has_thread_multiple();  // whether several threads may call MPI at once

// Facts of the build and of the library in use.
std::string mpi_vendor();           // of the mpi.h built against: "mpich", "openmpi" or "other"
std::string mpi_header_version();   // its own version, or that of the standard
std::string mpi_library_version();  // first line of what the loaded library says
std::string mpi_library_path();     // file the MPI functions of this module come from
std::string compiler();

// A duplicate of a communicator whose errors are returned, not fatal, so that they can become exceptions.
class Communicator {
 public:
  explicit Communicator(MPI_Comm parent);  // collective
  ~Communicator();  // frees nothing: MPI_Comm_free is collective, and destructors run at another time on every rank
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  void free();  // collective; a second call does nothing
  MPI_Comm handle() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int last_tag() const { return last_tag_; }  // MPI_TAG_UB

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int last_tag_ = 32767;
};

// Persistent requests that are freed together.
class Requests {
 public:
  Requests() = default;
  ~Requests() { free(); }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  void add(MPI_Request request) { requests_.push_back(request); }
  MPI_Request* operator[](std::size_t index) { return &requests_[index]; }
  std::size_t size() const { return requests_.size(); }
  void free() noexcept;  // local; a second call does nothing, nor does one after MPI_Finalize
  void abandon() noexcept { requests_.clear(); }  // for requests still under way when their owner goes

 private:
  std::vector<MPI_Request> requests_;
};

}  // namespace hpcpipe
