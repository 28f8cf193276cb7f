// A buffer on which the ranks of a communicator perform collective operations, message by message, without ever blocking.
// It performs the programs of program.hpp over persistent requests; it knows nothing of Python.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "elements.hpp"
#include "idle.hpp"
#include "mpi_util.hpp"
#include "program.hpp"

namespace hpcpipe {

// What buckets share: one duplicate of a communicator, in which each bucket has tags of its own.
class Group {
 public:
  explicit Group(MPI_Comm parent) : comm_(parent) {}  // collective
  const Communicator& comm() const { return comm_; }
  int take_tags(int number);  // the first of them; every rank must ask in the same order
  // Collective. After a failure it does nothing: requests may still be under way, and the other ranks may not come.
  void free() {
    if (!failed_) comm_.free();
  }
  void note_failure() { failed_ = true; }

 private:
  Communicator comm_;
  std::atomic<bool> failed_{false};
  int next_tag_ = 0;
};

struct Choices {
  Algorithm reduce_scatter = Algorithm::ring;
  Algorithm all_gather = Algorithm::ring;
  std::size_t chunk_bytes = 0;     // 0: what fits the operation and its algorithm
};

enum class Work { reduce_scatter, all_gather, all_reduce };  // the last is the first two, one after the other

class Bucket : public std::enable_shared_from_this<Bucket> {
 public:
  // `data` must outlive the bucket and its length must divide by the ranks. With `threaded` the progress thread works on
  // what is under way, and test() only asks; MPI must have been started with MPI_THREAD_MULTIPLE.
  Bucket(std::shared_ptr<Group> group, Element element, void* data, std::size_t length, Choices choices, bool threaded);
  ~Bucket();
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  void start(Work work);
  bool test();  // does what can be done now; true when nothing is under way
  bool wait_for(Poll poll, double seconds);  // test() until it is true or the time is over
  void free();  // the requests; local

  bool busy() const { return state_.load(std::memory_order_acquire) != State::idle; }
  std::size_t shard_begin() const { return static_cast<std::size_t>(group_->comm().rank()) * block_; }
  std::size_t shard_end() const { return shard_begin() + block_; }

  // For the progress thread: one round of test() that keeps an error for the next caller of test(). False when there is
  // nothing left to do; `moved` says whether anything happened.
  bool advance_beside(bool& moved) noexcept;

 private:
  enum class State { idle, under_way, broken };
  // A program with the requests and the memory that perform it.
  struct Loaded {
    Program program;
    Requests requests;
    std::vector<unsigned char> scratch;
    int tag;
  };

  const char* name() const;
  void load(Operation operation);
  std::unique_ptr<Loaded> prepare(Program program, int tag) const;
  std::size_t chunk_of(Operation operation, Algorithm algorithm) const;
  unsigned char* at(const Loaded& loaded, const Place& place) const;
  int bytes(std::size_t elements) const { return static_cast<int>(elements * size_of(element_)); }
  bool broken() const { return state_.load(std::memory_order_acquire) == State::broken; }
  void break_down();
  void refuse_broken() const;

  void open();
  bool advance_here();
  bool advance();
  bool advance_program(Loaded& loaded);
  void start_what_can(Loaded& loaded);
  bool take_receive(Loaded& loaded);
  bool take_sends(Loaded& loaded);
  void start(Loaded& loaded, std::size_t request);
  bool finished(Loaded& loaded, std::size_t request, MPI_Status* status);
  void check_received(const Loaded& loaded, const Receive& receive, const MPI_Status& status);
  void check_call(int code, const Request& request);

  std::shared_ptr<Group> group_;
  const Element element_;
  void* const data_;
  const std::size_t block_;  // elements of one rank's block
  const Choices choices_;
  const bool threaded_;
  const int first_tag_;
  bool freed_ = false;
  std::vector<std::unique_ptr<Loaded>> reduce_scatter_, all_gather_;  // each made when first started
  Work work_ = Work::all_reduce;  // the last one started

  std::atomic<State> state_{State::idle};
  std::exception_ptr error_;  // of the progress thread; read when the state is broken
  bool error_told_ = false;
  std::vector<Loaded*> sequence_;
  std::size_t current_ = 0;  // in sequence_
  std::size_t started_receives_ = 0, received_ = 0, started_sends_ = 0, sent_ = 0, reduced_ = 0;
  std::vector<const void*> sources_;  // of the reduction under way
  std::size_t steps_ = 0;  // receives and sends that have ended since the start
};

}  // namespace hpcpipe
