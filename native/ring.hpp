// Ring reduce-scatter and all-gather of one float32 buffer, as a state machine that never blocks; knows nothing of Python.
//
// The buffer is cut into one block per rank, blocks into chunks that are reduced while the next one travels. Every sum is
// made in the order of the ring (block b: ranks b+1, b+2, ..., b), so the bits do not depend on timing.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "mpi_util.hpp"

namespace hpcpipe {

enum class Poll { spin, yield, sleep };

Poll poll_from_name(const std::string& name);  // throws std::invalid_argument that lists the names

class Ring {
 public:
  static constexpr std::size_t kDefaultChunk = 1 << 16;  // elements: 256 KiB, which stays in a core's cache

  // Collective over `parent`, which is duplicated. `data` must outlive the ring and its length must divide by the ranks.
  Ring(MPI_Comm parent, float* data, std::size_t length, std::size_t chunk = kDefaultChunk);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void start_reduce_scatter();
  void start_all_gather();
  bool test();  // does what can be done now; true when nothing is under way
  bool wait_for(Poll poll, double seconds);  // test() until it is true or the time is over
  void free();  // collective

  bool busy() const { return stage_ != Stage::idle; }
  std::size_t shard_begin() const { return static_cast<std::size_t>(comm_.rank()) * block_; }
  std::size_t shard_end() const { return shard_begin() + block_; }

 private:
  enum class Stage { idle, reduce_scatter, all_gather, broken };
  struct Span {
    float* data;
    std::size_t length;
  };

  Span span(std::size_t step, std::size_t chunk, std::size_t lag) const;  // chunk of block (rank - step - lag)
  int count(Span span) const { return static_cast<int>(span.length); }
  void make_requests();
  void begin(Stage stage);
  void start(Requests& requests, std::size_t index, const char* what, int peer);
  bool finished(Requests& requests, std::size_t index, const char* what, int peer, MPI_Status* status);
  bool advance_receives();
  bool advance_sends();
  void receive_reduced(std::size_t message);
  void check_received(const MPI_Status& status, std::size_t expected);
  const char* name() const;

  Communicator comm_;
  float* data_;
  std::size_t length_;
  std::size_t block_;       // elements of one rank's block
  std::size_t chunk_;       // elements of a full chunk
  std::size_t num_chunks_;  // per block
  std::size_t num_messages_;  // of one operation, in each direction: (ranks - 1) * chunks
  int next_;
  int previous_;
  std::vector<float> scratch_;
  Requests reduce_receives_;  // one per scratch slot, started again and again
  Requests reduce_sends_, gather_receives_, gather_sends_;
  Stage stage_ = Stage::idle;
  bool freed_ = false;
  std::size_t num_received_ = 0;
  std::size_t num_sent_ = 0;
};

}  // namespace hpcpipe
