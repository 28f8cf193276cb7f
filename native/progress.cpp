// See progress.hpp.
#include "progress.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "bucket.hpp"
#include "idle.hpp"

namespace hpcpipe {

Progress& Progress::instance() {
  static auto* progress = new Progress;  // never destroyed: at the end of the process a thread may still be in MPI
  return *progress;
}

void Progress::add(std::shared_ptr<Bucket> bucket) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    incoming_.push_back(std::move(bucket));
    if (!thread_.joinable()) {
      stopping_ = false;
      thread_ = std::thread(&Progress::run, this);
    }
  }
  wake_.notify_one();
}

void Progress::stop() {
  std::thread ending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    ending = std::move(thread_);
  }
  wake_.notify_one();
  if (ending.joinable()) ending.join();
}

void Progress::run() {
  std::vector<std::shared_ptr<Bucket>> active;
  Idle idle(Poll::sleep);
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (active.empty()) wake_.wait(lock, [this] { return stopping_ || !incoming_.empty(); });
      if (stopping_) {
        new std::vector<std::shared_ptr<Bucket>>(std::move(active));
        return;
      }
      if (!incoming_.empty()) idle = Idle(Poll::sleep);
      std::move(incoming_.begin(), incoming_.end(), std::back_inserter(active));
      incoming_.clear();
    }
    bool any_moved = false;
    const auto is_done = [&](const std::shared_ptr<Bucket>& bucket) {
      bool moved = false;
      const bool done = !bucket->advance_beside(moved);
      any_moved = any_moved || moved || done;
      return done;
    };
    active.erase(std::remove_if(active.begin(), active.end(), is_done), active.end());
    if (any_moved) {
      idle = Idle(Poll::sleep);
    } else {
      idle();
    }
  }
}

}  // namespace hpcpipe
