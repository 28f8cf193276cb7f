// One step of a schedule in virtual time, the compiled twin of hpcpipe/simulate/step.py around hpcpipe/plan/stage.py: the
// same decisions, causes of waiting and peaks, over flat arrays. Knows no Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "simulate_draws.hpp"
#include "simulate_queue.hpp"
#include "simulate_schedule.hpp"

namespace hpcpipe::simulate {

enum TimeClass : std::uint8_t {  // the numbers of hpcpipe.plan.TimeClass
  kUpdate = 4,
  kWarmup = 6,
  kDrain = 7,
  kDependency = 8,
  kOrder = 10,
  kCap = 11,
  kExposedComm = 13,
  kRuntime = 16,
  kTimeClasses = 17,
};
constexpr std::array<TimeClass, kKinds> kClassOfKind = {TimeClass(1), TimeClass(2), TimeClass(3)};

// ns of every task; strides in elements, 0 where all along an axis are alike.
struct Durations {
  const std::int64_t* data;
  std::int64_t stage, kind, chunk, microbatch;
};

// Caps in chunk forwards, [stage][in flight, stash, in flight of chunk 0, 1, ..., stash of chunk 0, 1, ...]; below 0 is no
// cap.
struct Caps {
  const std::int64_t* data;
};

// hpcpipe/simulate/links.py over the delays of hpcpipe/plan/delays.py.
struct Link {
  enum class Delay { lognormal, bursts };
  Delay delay = Delay::lognormal;
  double base = 0.0;
  double sigma = 0.0;                            // of a lognormal delay
  double every = 1.0, length = 0.0, factor = 1.0;  // of bursts
  bool overtaking = true;
  bool duplex = true;
  std::int64_t occupied_ns = 0;  // how long a message keeps its link
  std::uint64_t seed = 0;
  std::int64_t step = 0;
};

// (source, target, what the message feeds, when it is sent) -> when it arrives; in place of a Link where set.
using Arrival = std::function<std::int64_t(int, int, Code, std::int64_t)>;

struct Network {
  Link link;
  Arrival arrival;
  std::int64_t agreement_ns = 0;  // passes between an arrival and the moment when its task can run
};

struct Message {
  std::int64_t sent;
  std::int64_t arrived;
  std::int32_t source;
  std::int32_t target;
  Code code;  // what it feeds
  std::int32_t unused = 0;
};

// What follows the last gradient of a fusion bucket's chunks (hpcpipe/plan/spread.py); the task codes stand after those of
// the schedule: bucket · 3 + kind. Only an update takes time of the stage; an all-gather ends beside the next step.
enum BucketKind : int { kReduceScatter = 0, kUpdateBucket = 1, kAllGather = 2, kBucketKinds = 3 };

struct Buckets {
  std::vector<std::int64_t> counts;  // [stage]
  bool replicated = false;           // updates stand between a reduce-scatter and an all-gather
  bool phased = false;               // all are reduced, then all updated, then all gathered, within the step
  std::int64_t norm_ns = -1;  // what passes from the last stage's coming to the norm until all know it; below 0: no norm
  const std::int64_t* durations = nullptr;  // ns, [stage][bucket kind][bucket], the last axis as long as the largest count
  std::int64_t most = 0;                    // the largest count
  const std::int64_t* gathered = nullptr;   // ns, [stage][bucket]: when the all-gathers of the step before end
};

// A task that ran or, with `code` -1, a wait; the norm has kNormRow. ns.
constexpr Code kNormRow = -2;
struct Row {
  std::int64_t start;
  std::int64_t end;
  Code code;
  std::int32_t cause;
};

class Step {
 public:
  // `begin`: when each stage can begin (ns). `keep_rows`: remember all rows and messages.
  Step(const Schedule& schedule, const Caps& caps, const Durations& durations, const std::int64_t* begin, Network network,
       Buckets buckets, bool keep_rows);

  // Go on for at most so many events; false when nothing can happen any more.
  bool advance(std::size_t events);
  // Close the books: the wait of every stage until the end.
  void close();

  std::vector<int> stuck() const;  // stages that have tasks left
  std::int64_t end(int stage) const { return stages_[stage].end; }  // when a stage was done
  const std::array<std::int64_t, kTimeClasses>& sums(int stage) const { return sums_[stage]; }
  std::int32_t peak_in_flight(int stage) const { return count_[count_index(stage, kInFlight)].peak; }
  std::int32_t peak_stash(int stage) const { return count_[count_index(stage, kStash)].peak; }
  const std::vector<Row>& rows(int stage) const { return rows_[stage]; }
  const std::vector<Row>& beside(int stage) const { return beside_[stage]; }  // reduce-scatters and all-gathers
  const std::vector<std::int64_t>& gathered() const { return gathered_; }  // [stage][bucket], as in Buckets
  const std::vector<Message>& messages() const { return messages_; }

 private:
  struct Count {  // flight.py's _Count; what it has yet to start and to finish stands in to_start_ and to_finish_
    std::int32_t limit = -1;
    std::int32_t now = 0;
    std::int32_t peak = 0;
    std::int32_t oldest = 0;
  };
  struct Lane {  // ready tasks are bits; none stands below `first`
    std::int32_t first = 0;
    std::int32_t count = 0;
  };
  struct Stage {
    std::int64_t begin = 0;
    std::int64_t started = 0;
    std::int64_t end = 0;
    std::int64_t idle_since = 0;
    Code running = -1;
    std::int32_t pending = 0;
    std::int32_t unfinished = 0;  // chunks whose gradients are not final
    std::int32_t buckets_ready = 0;
    std::int64_t link_free = 0;  // when the exchanges of the step before have ended
    std::int32_t turn_of = 0;    // exchanges that had their turn
    bool exchanging = false;
    std::int32_t sums_left = 0;  // reduce-scatters that are not done
    std::int32_t updates_left = 0;
    std::int64_t norm_started = 0;
    bool norm_ready = false;
    std::int32_t ready = 0;
    std::int32_t next = 0;  // fixed: the place in the order
    std::uint8_t idle_cause = kWarmup;
    std::uint8_t turn = kBackward;
    bool has_started = false;
    bool capped = false;
    bool reserves = false;  // every cap keeps room for what the oldest micro-batch has yet to start
    std::int32_t lanes_seen = 0;
  };

  static constexpr Code kFinishes = -1, kBegins = -2;  // stand in an event where a message has its task
  static constexpr Code kBesideFinishes = -3;          // and from here down, by code, reduce-scatters and all-gathers;
                                                       // then, by bucket, all-gathers of the step before; then the norm

  void event(const Event& event);
  void dispatch(int stage);
  void post(std::int64_t time, int stage, Code code) { queue_.push({time, ++serial_, stage, code}); }
  void send(int source, int target, Code code);
  std::size_t edge(int source, int target) const;
  std::int64_t link_arrival(int source, int target, Code code);
  std::int64_t duration(int stage, Code code) const;

  // The ready-set (ready.py).
  void add(int stage, int lane, std::int32_t microbatch);
  void remove(int stage, int lane, std::int32_t microbatch);
  bool contains(int stage, int lane, std::int32_t microbatch) const;
  std::int32_t top(int stage, int lane);  // the lane's best micro-batch; the lane is not empty

  // Caps (flight.py).
  static constexpr int kInFlight = 0, kStash = 1;  // the caps of all chunks together; then those by chunk
  int in_flight_of(int chunk) const { return 2 + chunk; }
  int stash_of(int chunk) const { return 2 + chunks_ + chunk; }
  std::array<int, 4> counts_of(int chunk) const { return {kInFlight, kStash, in_flight_of(chunk), stash_of(chunk)}; }
  bool room(int stage, int which) const;
  bool open(int stage, int chunk) const;
  bool admits(int stage, int chunk, std::int32_t microbatch) const;
  void start_forward(int stage, int chunk, std::int32_t microbatch);
  void leave(int stage, int which, std::int32_t microbatch);

  // What runs next (policy.py, hint.py, rounds.py): a code or -1, and the class of a wait (stage.py).
  Code choose(int stage);
  Code best_candidate(int stage);
  template <typename Visit>
  void visit_candidates(int stage, Visit visit);
  std::int64_t rank(int stage, int lane, std::int32_t microbatch) const;
  TimeClass why_idle(int stage);
  void finish(int stage, int lane, std::int32_t microbatch);

  // Buckets (StagePlan with buckets); `task` counts as in Buckets.
  struct Chunks {
    int first, last;
  };
  Chunks chunks_of(int stage, Code bucket) const;
  void finish_gradient(int stage, int chunk);
  void gathered_before(int stage, Code bucket);
  bool has_norm() const { return buckets_.norm_ns >= 0; }
  Code first_gathered() const { return static_cast<Code>(buckets_.most * kBucketKinds); }
  Code norm_task() const { return first_gathered() + static_cast<Code>(buckets_.most); }
  void add_bucket(int stage, Code task);
  void add_buckets(int stage, BucketKind kind);
  void finish_sums(int stage);
  void start_norm(int stage);
  void finish_norm(int stage);
  Code best_bucket(int stage, BucketKind kind) const;
  void exchange(int stage);  // exchanges.py, one at a time: begin what has its turn
  void start_bucket(int stage, Code task);
  void finish_bucket(int stage, Code task);
  std::int64_t bucket_ns(int stage, Code task) const {
    const std::size_t lane = static_cast<std::size_t>(stage) * kBucketKinds + task % kBucketKinds;
    return buckets_.durations[lane * buckets_.most + task / kBucketKinds];
  }
  std::size_t bucket_index(int stage, Code task) const {
    return static_cast<std::size_t>(stage) * kBucketKinds * buckets_.most + task;
  }

  void wait(int stage, TimeClass cause, std::int64_t now);
  void end_wait(int stage, std::int64_t now);

  std::size_t lane_index(int stage, int lane) const { return static_cast<std::size_t>(stage) * lanes_ + lane; }
  std::size_t chunk_index(int stage, int chunk) const { return static_cast<std::size_t>(stage) * chunks_ + chunk; }
  std::size_t code_index(int stage, int lane, std::int32_t microbatch) const {
    return lane_index(stage, lane) * microbatches_ + microbatch;
  }
  std::size_t count_index(int stage, int which) const { return static_cast<std::size_t>(stage) * counts_ + which; }

  const Schedule& schedule_;
  const int lanes_, chunks_, microbatches_, words_;
  const int counts_;  // caps of a stage
  const Durations durations_;
  const Code codes_;
  const Network network_;
  const Buckets buckets_;
  const Place link_place_;
  const std::int64_t latency_;
  const bool keep_rows_;

  std::int64_t now_ = 0;
  std::uint64_t serial_ = 0;
  EventQueue queue_;
  std::vector<Stage> stages_;
  std::vector<Lane> lanes_of_stages_;             // [stage][lane]
  std::vector<std::uint16_t> lane_order_;         // [stage]: lanes in the order in which they first had a task
  std::vector<std::uint64_t> bits_;               // [stage][lane][word]
  std::vector<Count> count_;                      // [stage][which], as in Caps
  std::vector<std::uint16_t> to_start_, to_finish_;  // [stage][which][microbatch], chunks; empty where nothing reads them
  std::vector<std::int32_t> next_weight_;         // [stage][chunk]
  std::vector<std::uint64_t> waiting_weights_;    // [stage][chunk][word]
  std::vector<std::int64_t> link_free_, link_last_;  // [source][to the next or the previous stage]
  std::vector<std::array<std::int64_t, kTimeClasses>> sums_;
  std::vector<std::vector<Row>> rows_;
  std::vector<std::vector<Row>> beside_;
  std::vector<Message> messages_;
  std::vector<std::int32_t> gradients_left_;    // [stage][chunk]
  std::vector<std::int32_t> gathering_;         // [stage][chunk]: all-gathers of the step before that its forwards wait for
  std::vector<std::vector<Code>> held_;         // [stage]: forwards that wait for them
  std::vector<std::int64_t> gathered_;          // [stage][bucket]
  std::vector<std::uint8_t> bucket_ready_;      // [stage][task]
  std::vector<std::uint8_t> bucket_asked_;      // [stage][task]: exchanges that wait for their turn
  std::vector<std::int64_t> bucket_started_;    // [stage][task]
  int norms_started_ = 0;                       // stages that have come to the norm
};

}  // namespace hpcpipe::simulate
