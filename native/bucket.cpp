// See bucket.hpp. Messages of one operation between two ranks have one tag and arrive in the order in which they were sent,
// which is the order in which the receiver expects them.
#include "bucket.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "kernels.hpp"
#include "progress.hpp"

namespace hpcpipe {

namespace {

constexpr int kTags = 2;  // one an operation
// To send a block of so many bytes costs more than to wake the progress thread for it.
constexpr std::size_t kHandedOver = std::size_t{64} << 10;
constexpr std::size_t kMostSends = 16;  // under way at once
constexpr std::size_t kLongestMessage = std::size_t{1} << 30;  // bytes; MPI counts are ints

std::size_t checked_block(const Communicator& comm, std::size_t length) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  if (length % ranks != 0) {
    throw std::invalid_argument("a buffer of " + std::to_string(length) + " elements does not divide by " +
                                std::to_string(ranks) + " ranks: pad it to a multiple");
  }
  return length / ranks;
}

}  // namespace

int Group::take_tags(int number) {
  if (next_tag_ > comm_.last_tag() - number) {
    throw std::length_error("this group has no tags left for another bucket (MPI_TAG_UB is " +
                            std::to_string(comm_.last_tag()) + "): make another group");
  }
  next_tag_ += number;
  return next_tag_ - number;
}

Bucket::Bucket(std::shared_ptr<Group> group, Element element, void* data, std::size_t length, Choices choices,
               bool threaded)
    : group_(std::move(group)),
      element_(element),
      data_(data),
      block_(checked_block(group_->comm(), length)),
      choices_(choices),
      threaded_(threaded),
      first_tag_(group_->take_tags(kTags)) {
  if (threaded_ && !has_thread_multiple()) {
    throw std::invalid_argument(
        "a progress thread needs MPI_THREAD_MULTIPLE, which this MPI was not started with: let it be polled instead");
  }
}

Bucket::~Bucket() {
  if (!busy()) return;
  // MPI may still write here: what is under way is left alone, with the memory that it uses.
  for (auto* programs : {&reduce_scatter_, &all_gather_}) {
    for (std::unique_ptr<Loaded>& loaded : *programs) loaded.release()->requests.abandon();
  }
}

std::size_t Bucket::chunk_of(Operation operation, Algorithm algorithm) const {
  std::size_t bytes = choices_.chunk_bytes;
  if (bytes == 0) {
    // A chunk that is added stays in a core's cache; those of all peers together take scratch memory.
    constexpr std::size_t kAdded = std::size_t{256} << 10, kAddedTogether = std::size_t{768} << 10;
    constexpr std::size_t kLeast = std::size_t{64} << 10, kForwarded = std::size_t{1} << 20;
    const auto peers = static_cast<std::size_t>(std::max(1, group_->comm().size() - 1));
    const bool direct = algorithm == Algorithm::direct;
    if (operation == Operation::reduce_scatter) {
      bytes = direct ? std::clamp(kAddedTogether / peers, kLeast, kAdded) : kAdded;
    } else {
      bytes = direct ? kLongestMessage : kForwarded;
    }
  }
  return std::max<std::size_t>(1, std::min(bytes, kLongestMessage) / size_of(element_));
}

std::unique_ptr<Bucket::Loaded> Bucket::prepare(Program program, int tag) const {
  auto loaded = std::make_unique<Loaded>();
  loaded->program = std::move(program);
  loaded->scratch.resize(loaded->program.scratch * size_of(element_));
  loaded->tag = tag;
  const MPI_Comm comm = group_->comm().handle();
  for (const Request& wanted : loaded->program.requests) {
    MPI_Request request = MPI_REQUEST_NULL;
    void* memory = at(*loaded, wanted.at);
    const int count = bytes(wanted.at.length);
    const int code = wanted.sends ? MPI_Send_init(memory, count, MPI_BYTE, wanted.peer, tag, comm, &request)
                                  : MPI_Recv_init(memory, count, MPI_BYTE, wanted.peer, tag, comm, &request);
    check(code, comm, wanted.sends ? "preparing a send" : "preparing a receive", wanted.peer);
    loaded->requests.add(request);
  }
  return loaded;
}

void Bucket::load(Operation operation) {
  const bool reduces = operation == Operation::reduce_scatter;
  std::vector<std::unique_ptr<Loaded>>& programs = reduces ? reduce_scatter_ : all_gather_;
  if (programs.empty()) {
    const Algorithm algorithm = reduces ? choices_.reduce_scatter : choices_.all_gather;
    const Shape shape{group_->comm().rank(), group_->comm().size(), block_, chunk_of(operation, algorithm)};
    std::vector<std::unique_ptr<Loaded>> made;
    for (Program& program : make_programs(operation, algorithm, shape)) {
      made.push_back(prepare(std::move(program), first_tag_ + static_cast<int>(operation)));
    }
    programs = std::move(made);
  }
  for (const std::unique_ptr<Loaded>& one : programs) sequence_.push_back(one.get());
}

const char* Bucket::name() const {
  return work_ == Work::reduce_scatter ? "the reduce-scatter" : work_ == Work::all_gather ? "the all-gather" : "the all-reduce";
}

unsigned char* Bucket::at(const Loaded& loaded, const Place& place) const {
  const auto* base = place.scratch ? loaded.scratch.data() : static_cast<const unsigned char*>(data_);
  return const_cast<unsigned char*>(base) + place.begin * size_of(element_);
}

void Bucket::break_down() {
  group_->note_failure();
  state_.store(State::broken, std::memory_order_release);
}

void Bucket::refuse_broken() const {
  if (broken()) {
    throw std::logic_error("an earlier operation on this bucket failed: make a new one");
  }
}

void Bucket::start(Work work) {
  if (freed_) throw std::logic_error("this bucket has been freed");
  refuse_broken();
  if (busy()) {
    throw std::logic_error(std::string(name()) + " of this bucket is still under way: wait for it first");
  }
  sequence_.clear();
  if (work != Work::all_gather) load(Operation::reduce_scatter);
  if (work != Work::reduce_scatter) load(Operation::all_gather);
  work_ = work;
  current_ = 0;
  steps_ = 0;
  if (sequence_.empty()) return;
  state_.store(State::under_way, std::memory_order_release);
  open();
  const bool hands_over = threaded_ && block_ * size_of(element_) >= kHandedOver;
  if (hands_over || (!advance_here() && threaded_)) Progress::instance().add(shared_from_this());
}

bool Bucket::advance_here() {
  try {
    if (!advance()) return false;
  } catch (...) {
    break_down();
    throw;
  }
  state_.store(State::idle, std::memory_order_release);
  return true;
}

void Bucket::open() {
  started_receives_ = received_ = started_sends_ = sent_ = reduced_ = 0;
}

bool Bucket::advance() {
  while (advance_program(*sequence_[current_])) {
    if (++current_ == sequence_.size()) return true;
    open();
  }
  return false;
}

bool Bucket::advance_program(Loaded& loaded) {
  const Program& program = loaded.program;
  while (true) {
    start_what_can(loaded);
    if (take_receive(loaded) || take_sends(loaded)) continue;
    return received_ == program.receives.size() && sent_ == program.sends.size();
  }
}

void Bucket::start_what_can(Loaded& loaded) {
  const Program& program = loaded.program;
  for (; started_receives_ < program.receives.size(); ++started_receives_) {
    const Receive& receive = program.receives[started_receives_];
    if (receive.after > received_) break;
    start(loaded, receive.request);
  }
  for (; started_sends_ < program.sends.size(); ++started_sends_) {
    const Send& send = program.sends[started_sends_];
    if (send.after > received_ || started_sends_ - sent_ >= kMostSends) break;
    start(loaded, send.request);
  }
}

bool Bucket::take_receive(Loaded& loaded) {
  if (received_ == started_receives_) return false;
  const Receive& receive = loaded.program.receives[received_];
  MPI_Status status;
  if (!finished(loaded, receive.request, &status)) return false;
  check_received(loaded, receive, status);
  for (; reduced_ < receive.reductions_end; ++reduced_) {
    const Reduction& reduction = loaded.program.reductions[reduced_];
    sources_.clear();
    for (const Place& source : reduction.sources) sources_.push_back(at(loaded, source));
    reduce(element_, at(loaded, reduction.into), sources_.data(), sources_.size(), reduction.into.length);
  }
  ++received_;
  ++steps_;
  return true;
}

bool Bucket::take_sends(Loaded& loaded) {
  const std::size_t before = sent_;
  while (sent_ < started_sends_ && finished(loaded, loaded.program.sends[sent_].request, MPI_STATUS_IGNORE)) ++sent_;
  steps_ += sent_ - before;
  return sent_ > before;
}

void Bucket::start(Loaded& loaded, std::size_t request) {
  check_call(MPI_Start(loaded.requests[request]), loaded.program.requests[request]);
}

bool Bucket::finished(Loaded& loaded, std::size_t request, MPI_Status* status) {
  int done = 0;
  check_call(MPI_Test(loaded.requests[request], &done, status), loaded.program.requests[request]);
  return done != 0;
}

void Bucket::check_call(int code, const Request& request) {
  if (code == MPI_SUCCESS) return;
  check(code, group_->comm().handle(), std::string(request.sends ? "a send of " : "a receive of ") + name(),
        request.peer);
}

void Bucket::check_received(const Loaded& loaded, const Receive& receive, const MPI_Status& status) {
  int length = 0;
  MPI_Get_count(&status, MPI_BYTE, &length);
  if (length == bytes(receive.length)) return;
  throw MpiError("rank " + std::to_string(group_->comm().rank()) + ": in " + name() + " rank " +
                 std::to_string(loaded.program.requests[receive.request].peer) + " sent " + std::to_string(length) +
                 " bytes where " + std::to_string(bytes(receive.length)) + " were due: the buckets of the two differ");
}

bool Bucket::test() {
  if (broken() && error_ && !error_told_) {
    error_told_ = true;
    std::rethrow_exception(error_);
  }
  refuse_broken();
  if (!busy()) return true;
  return !threaded_ && advance_here();
}

bool Bucket::advance_beside(bool& moved) noexcept {
  const std::size_t before = steps_;
  try {
    const bool done = advance();
    moved = done || steps_ != before;
    if (done) state_.store(State::idle, std::memory_order_release);
    return !done;
  } catch (...) {
    error_ = std::current_exception();
    break_down();
    return false;
  }
}

bool Bucket::wait_for(Poll poll, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Idle idle(poll);
  std::size_t seen = 0;
  for (unsigned round = 0; !test(); ++round) {
    if (round % 16 == 15 && std::chrono::steady_clock::now() > end) return false;
    const std::size_t now = threaded_ ? 0 : steps_;
    if (now != seen) {
      seen = now;
      idle = Idle(poll);
    } else {
      idle();
    }
  }
  return true;
}

void Bucket::free() {
  if (freed_) return;
  if (broken()) return;  // its requests may still be under way
  if (busy()) {
    throw std::logic_error(std::string(name()) +
                           " of this bucket is still under way: wait before freeing it");
  }
  freed_ = true;
  for (auto* programs : {&reduce_scatter_, &all_gather_}) programs->clear();
}

}  // namespace hpcpipe
