// See ring.hpp. Messages of one direction arrive in the order in which they were sent, so each is named by its number only:
// message q of an operation is chunk q % num_chunks of the block that travels in step q / num_chunks.
#include "ring.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace hpcpipe {

namespace {

constexpr std::size_t kSlots = 2;  // one chunk arrives while the one before is added
constexpr int kReduceTag = 0;
constexpr int kGatherTag = 1;

void add(float* __restrict into, const float* __restrict from, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) into[i] = from[i] + into[i];
}

// Spins first, so that a quick answer costs nothing; then gives the core to others, for longer the longer it waits.
class Idle {
 public:
  explicit Idle(Poll poll) : poll_(poll) {}
  void operator()() {
    if (poll_ == Poll::spin || ++empty_ <= kSpins) return;
    if (poll_ == Poll::yield || empty_ <= kSpins + kYields) {
      sched_yield();
      return;
    }
    const timespec duration{0, sleep_ns_};
    nanosleep(&duration, nullptr);
    sleep_ns_ = std::min(sleep_ns_ * 2, kLongestSleepNs);
  }

 private:
  static constexpr int kSpins = 100;
  static constexpr int kYields = 20;
  static constexpr long kLongestSleepNs = 500'000;
  Poll poll_;
  int empty_ = 0;
  long sleep_ns_ = 20'000;
};

}  // namespace

Poll poll_from_name(const std::string& name) {
  if (name == "spin") return Poll::spin;
  if (name == "yield") return Poll::yield;
  if (name == "sleep") return Poll::sleep;
  throw std::invalid_argument("poll is '" + name + "': it must be spin, yield or sleep");
}

Ring::Ring(MPI_Comm parent, float* data, std::size_t length, std::size_t chunk)
    : comm_(parent), data_(data), length_(length) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  if (length % ranks != 0) {
    throw std::invalid_argument("a buffer of " + std::to_string(length) + " elements does not divide by " +
                                std::to_string(ranks) + " ranks: pad it to a multiple");
  }
  if (chunk == 0) throw std::invalid_argument("a chunk needs at least one element");
  block_ = length / ranks;
  chunk_ = std::max<std::size_t>(1, std::min({chunk, block_, std::size_t{1} << 28}));  // MPI counts are ints
  num_chunks_ = (block_ + chunk_ - 1) / chunk_;
  num_messages_ = (ranks - 1) * num_chunks_;
  next_ = (comm_.rank() + 1) % comm_.size();
  previous_ = (comm_.rank() + comm_.size() - 1) % comm_.size();
  if (num_messages_ > 0) make_requests();
}

Ring::~Ring() {
  if (!busy()) return;
  // MPI may still write here: what is under way is left alone, with the memory that it uses.
  for (Requests* requests : {&reduce_receives_, &reduce_sends_, &gather_receives_, &gather_sends_}) requests->abandon();
  new std::vector<float>(std::move(scratch_));
}

Ring::Span Ring::span(std::size_t step, std::size_t chunk, std::size_t lag) const {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  const std::size_t block = (static_cast<std::size_t>(comm_.rank()) + 2 * ranks - step - lag) % ranks;
  const std::size_t begin = chunk * chunk_;
  return {data_ + block * block_ + begin, std::min(chunk_, block_ - begin)};
}

void Ring::make_requests() {
  scratch_.resize(kSlots * chunk_);
  const auto add_request = [this](Requests& requests, auto init, Span at, int peer, int tag, const char* what) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(init(at.data, count(at), MPI_FLOAT, peer, tag, comm_.handle(), &request), comm_.handle(), what, peer);
    requests.add(request);
  };
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    add_request(reduce_receives_, MPI_Recv_init, {scratch_.data() + slot * chunk_, chunk_}, previous_, kReduceTag,
                "preparing a receive");
  }
  for (std::size_t message = 0; message < num_messages_; ++message) {
    const std::size_t step = message / num_chunks_;
    const std::size_t chunk = message % num_chunks_;
    add_request(reduce_sends_, MPI_Send_init, span(step, chunk, 1), next_, kReduceTag, "preparing a send");
    add_request(gather_sends_, MPI_Send_init, span(step, chunk, 0), next_, kGatherTag, "preparing a send");
    add_request(gather_receives_, MPI_Recv_init, span(step, chunk, 1), previous_, kGatherTag, "preparing a receive");
  }
}

const char* Ring::name() const { return stage_ == Stage::all_gather ? "the all-gather" : "the reduce-scatter"; }

void Ring::begin(Stage stage) {
  if (freed_) throw std::logic_error("this bucket has been freed");
  if (stage_ == Stage::broken) throw std::logic_error("an earlier operation on this bucket failed: make a new one");
  if (busy()) throw std::logic_error(std::string(name()) + " of this bucket is still under way: wait for it first");
  stage_ = stage;
  num_received_ = 0;
  num_sent_ = 0;
}

void Ring::start_reduce_scatter() {
  begin(Stage::reduce_scatter);
  for (std::size_t slot = 0; slot < std::min(kSlots, num_messages_); ++slot) {
    start(reduce_receives_, slot, "a receive of", previous_);
  }
  for (std::size_t chunk = 0; chunk < std::min(num_chunks_, num_messages_); ++chunk) {
    start(reduce_sends_, chunk, "a send of", next_);
  }
  test();
}

void Ring::start_all_gather() {
  begin(Stage::all_gather);
  for (std::size_t message = 0; message < num_messages_; ++message) {
    start(gather_receives_, message, "a receive of", previous_);
  }
  for (std::size_t chunk = 0; chunk < std::min(num_chunks_, num_messages_); ++chunk) {
    start(gather_sends_, chunk, "a send of", next_);
  }
  test();
}

void Ring::start(Requests& requests, std::size_t index, const char* what, int peer) {
  const int code = MPI_Start(requests[index]);
  if (code == MPI_SUCCESS) return;
  const std::string operation = std::string(what) + " " + name();
  stage_ = Stage::broken;
  check(code, comm_.handle(), operation, peer);
}

bool Ring::finished(Requests& requests, std::size_t index, const char* what, int peer, MPI_Status* status) {
  int done = 0;
  const int code = MPI_Test(requests[index], &done, status);
  if (code == MPI_SUCCESS) return done != 0;
  const std::string operation = std::string(what) + " " + name();
  stage_ = Stage::broken;
  check(code, comm_.handle(), operation, peer);
  return false;
}

void Ring::check_received(const MPI_Status& status, std::size_t expected) {
  int length = 0;
  MPI_Get_count(&status, MPI_FLOAT, &length);
  if (length == static_cast<int>(expected)) return;
  const std::string operation = name();
  stage_ = Stage::broken;
  throw MpiError("rank " + std::to_string(comm_.rank()) + ": in " + operation + " rank " + std::to_string(previous_) +
                 " sent " + std::to_string(length) + " elements where " + std::to_string(expected) +
                 " were due: the buckets of the two differ");
}

void Ring::receive_reduced(std::size_t message) {
  const std::size_t slot = message % kSlots;
  const Span own = span(message / num_chunks_, message % num_chunks_, 2);
  add(own.data, scratch_.data() + slot * chunk_, own.length);
  if (message + kSlots < num_messages_) start(reduce_receives_, slot, "a receive of", previous_);
}

bool Ring::advance_receives() {
  const bool reducing = stage_ == Stage::reduce_scatter;
  Requests& receives = reducing ? reduce_receives_ : gather_receives_;
  while (num_received_ < num_messages_) {
    const std::size_t message = num_received_;
    MPI_Status status;
    if (!finished(receives, reducing ? message % kSlots : message, "a receive of", previous_, &status)) return false;
    check_received(status, span(0, message % num_chunks_, 0).length);
    if (reducing) receive_reduced(message);
    ++num_received_;
    const std::size_t follower = message + num_chunks_;  // what arrived is what travels on in the next step
    if (follower < num_messages_) start(reducing ? reduce_sends_ : gather_sends_, follower, "a send of", next_);
  }
  return true;
}

bool Ring::advance_sends() {
  Requests& sends = stage_ == Stage::reduce_scatter ? reduce_sends_ : gather_sends_;
  while (num_sent_ < num_messages_) {
    if (!finished(sends, num_sent_, "a send of", next_, MPI_STATUS_IGNORE)) return false;
    ++num_sent_;
  }
  return true;
}

bool Ring::test() {
  if (stage_ == Stage::broken) throw std::logic_error("an earlier operation on this bucket failed: make a new one");
  if (!busy()) return true;
  if (!advance_receives() || !advance_sends()) return false;
  stage_ = Stage::idle;
  return true;
}

bool Ring::wait_for(Poll poll, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Idle idle(poll);
  std::size_t seen = num_received_ + num_sent_;
  while (!test()) {
    if (std::chrono::steady_clock::now() > end) return false;
    if (const std::size_t now = num_received_ + num_sent_; now != seen) {
      seen = now;
      idle = Idle(poll);
    } else {
      idle();
    }
  }
  return true;
}

void Ring::free() {
  if (freed_) return;
  if (stage_ == Stage::broken) return;  // its requests may still be under way, and the other ranks may not come
  if (busy()) throw std::logic_error(std::string(name()) + " of this bucket is still under way: wait before freeing it");
  freed_ = true;
  for (Requests* requests : {&reduce_receives_, &reduce_sends_, &gather_receives_, &gather_sends_}) requests->free();
  comm_.free();
}

}  // namespace hpcpipe
