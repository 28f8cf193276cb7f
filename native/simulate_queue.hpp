// The events that are to come, earliest first and of equal times the one posted first; a heap of four children a node.
// A pop leaves a hole at the top that the next push fills: most events are followed by one, which then costs one descent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpcpipe::simulate {

struct Event {
  std::int64_t time;
  std::uint64_t serial;
  std::int32_t stage;
  std::int32_t code;  // the task that a message feeds, or below 0 what else happens
};

class EventQueue {
 public:
  void push(const Event& event) {
    if (hole_) {
      hole_ = false;
      descend(event);
      return;
    }
    std::size_t at = heap_.size();
    heap_.push_back(event);
    while (at > 0) {
      const std::size_t parent = (at - 1) / kChildren;
      if (!before(event, heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }

  bool pop(Event& event) {
    if (hole_) {
      hole_ = false;
      const Event last = heap_.back();
      heap_.pop_back();
      if (!heap_.empty()) descend(last);
    }
    if (heap_.empty()) return false;
    event = heap_.front();
    hole_ = true;
    return true;
  }

 private:
  static constexpr std::size_t kChildren = 4;

  static bool before(const Event& a, const Event& b) {
    return a.time < b.time || (a.time == b.time && a.serial < b.serial);
  }

  // Put an event in the place of the first.
  void descend(const Event& event) {
    const std::size_t size = heap_.size();
    std::size_t at = 0;
    while (true) {
      const std::size_t begin = at * kChildren + 1;
      if (begin >= size) break;
      const std::size_t end = begin + kChildren < size ? begin + kChildren : size;
      std::size_t least = begin;
      for (std::size_t child = begin + 1; child < end; ++child) {
        if (before(heap_[child], heap_[least])) least = child;
      }
      if (!before(heap_[least], event)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = event;
  }

  std::vector<Event> heap_;
  bool hole_ = false;
};

}  // namespace hpcpipe::simulate
