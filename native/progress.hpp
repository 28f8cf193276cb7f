// The one thread of a process that works on buckets while everybody else computes; sleeps while there are none.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hpcpipe {

class Bucket;

class Progress {
 public:
  static Progress& instance();  // its thread is started by the first bucket

  void add(std::shared_ptr<Bucket> bucket);  // until nothing of it is under way
  // Ends the thread, before MPI ends; what is still under way is left as it is, with its memory.
  void stop();

 private:
  Progress() = default;
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Bucket>> incoming_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hpcpipe
