// What a core does while it waits for messages that have not come; knows nothing of messages.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hpcpipe {

enum class Poll { spin, yield, sleep };

inline Poll poll_from_name(const std::string& name) {
  if (name == "spin") return Poll::spin;
  if (name == "yield") return Poll::yield;
  if (name == "sleep") return Poll::sleep;
  throw std::invalid_argument("poll is '" + name + "': it must be spin, yield or sleep");
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
  static constexpr int kSpins = 10;
  static constexpr int kYields = 20;
  static constexpr long kLongestSleepNs = 500'000;
  Poll poll_;
  int empty_ = 0;
  long sleep_ns_ = 20'000;
};

}  // namespace hpcpipe
