// The begin and the end of a step: what stands in the arrays at first, what follows the last gradients, the last wait.
#include <algorithm>
#include <limits>
#include <utility>

#include "simulate_step.hpp"

namespace hpcpipe::simulate {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();

std::int32_t narrowed(std::int64_t cap) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(cap, -1, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace

Step::Step(const Schedule& schedule, const Caps& caps, const Durations& durations, const std::int64_t* begin,
           Network network, Buckets buckets, bool keep_rows)
    : schedule_(schedule),
      lanes_(schedule.shape.lanes()),
      chunks_(schedule.shape.chunks),
      microbatches_(schedule.shape.microbatches),
      words_((schedule.shape.microbatches + 63) / 64),
      counts_(2 + 2 * schedule.shape.chunks),
      durations_(durations),
      codes_(schedule.shape.codes()),
      network_(std::move(network)),
      buckets_(std::move(buckets)),
      link_place_(Place(network_.link.seed).at(network_.link.step)),
      latency_(std::llrint(network_.link.base)),
      keep_rows_(keep_rows) {
  const std::size_t stages = schedule.shape.stages;
  stages_.resize(stages);
  lanes_of_stages_.resize(stages * lanes_);
  lane_order_.resize(stages * lanes_);
  bits_.resize(stages * lanes_ * words_);
  count_.resize(stages * counts_);
  next_weight_.resize(stages * chunks_);
  if (schedule.chained) waiting_weights_.resize(stages * chunks_ * words_);
  link_free_.assign(2 * stages, kNever);
  link_last_.assign(2 * stages, 0);
  sums_.resize(stages);
  if (keep_rows_) {
    rows_.resize(stages);
    beside_.resize(stages);
  }
  gradients_left_.assign(stages * chunks_, microbatches_);
  gathering_.resize(stages * chunks_);
  held_.resize(stages);
  if (buckets_.most > 0) gathered_.assign(buckets_.gathered, buckets_.gathered + stages * buckets_.most);
  bucket_asked_.resize(stages * kBucketKinds * buckets_.most);
  bucket_ready_.resize(stages * kBucketKinds * buckets_.most);
  bucket_started_.resize(stages * kBucketKinds * buckets_.most);

  bool any_capped = false, any_reserves = false;
  for (std::size_t number = 0; number < stages; ++number) {
    Stage& stage = stages_[number];
    const std::int64_t* cap = caps.data + number * counts_;
    for (int which = 0; which < counts_; ++which) count_[number * counts_ + which].limit = narrowed(cap[which]);
    const auto is_cap = [](std::int64_t limit) { return limit >= 0; };
    const bool together = std::any_of(cap, cap + 2, is_cap), by_chunk = std::any_of(cap + 2, cap + counts_, is_cap);
    stage.capped = together || by_chunk;
    stage.reserves = stage.capped && (schedule.chained || (together && by_chunk));
    any_capped = any_capped || stage.capped;
    any_reserves = any_reserves || stage.reserves;
    stage.unfinished = chunks_;
    stage.pending = (schedule.split ? 3 : 2) * chunks_ * microbatches_;
    if (buckets_.most > 0) stage.updates_left = static_cast<std::int32_t>(buckets_.counts[number]);
    stage.sums_left = buckets_.replicated ? stage.updates_left : 0;
    stage.pending += stage.updates_left + 2 * stage.sums_left + (has_norm() ? 1 : 0);
    stage.turn = schedule.rule.first;
    stage.begin = stage.end = stage.idle_since = begin[number];
    if (keep_rows_) rows_[number].reserve(stage.pending + chunks_ * microbatches_);
  }
  if (any_capped) {  // of each micro-batch so many chunks are to start and to finish; one where chunks count by themselves
    to_finish_.assign(stages * counts_ * microbatches_, 1);
    for (std::size_t number = 0; number < stages; ++number) {
      const auto first = to_finish_.begin() + number * counts_ * microbatches_;
      std::fill_n(first, std::size_t{2} * microbatches_, static_cast<std::uint16_t>(chunks_));
    }
  }
  if (any_reserves) to_start_ = to_finish_;

  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    post(begin[stage], stage, kBegins);
    for (Code bucket = 0; buckets_.most > 0 && bucket < buckets_.counts[stage]; ++bucket) {
      const std::int64_t there = gathered_[stage * buckets_.most + bucket];
      stages_[stage].link_free = std::max(stages_[stage].link_free, there);
      if (there <= begin[stage]) continue;
      const Chunks chunks = chunks_of(stage, bucket);
      for (int chunk = chunks.first; chunk <= chunks.last; ++chunk) ++gathering_[chunk_index(stage, chunk)];
      post(there, stage, kBesideFinishes - first_gathered() - bucket);
    }
  }
}

// spread_buckets of hpcpipe/plan/spread.py.
Step::Chunks Step::chunks_of(int number, Code bucket) const {
  const std::int64_t count = buckets_.counts[number];
  return {static_cast<int>(chunks_ - 1 - ((std::int64_t{bucket} + 1) * chunks_ - 1) / count),
          static_cast<int>(chunks_ - 1 - std::int64_t{bucket} * chunks_ / count)};
}

// Ready the buckets whose gradients are final with this chunk's; in phases, those of all chunks with the last.
void Step::finish_gradient(int number, int chunk) {
  const std::int32_t* left = gradients_left_.data() + chunk_index(number, 0);
  if (--gradients_left_[chunk_index(number, chunk)] > 0) return;
  --stages_[number].unfinished;
  for (Code bucket = 0; buckets_.most > 0 && bucket < buckets_.counts[number]; ++bucket) {
    const Chunks chunks = chunks_of(number, bucket);
    const auto is_left = [](std::int32_t count) { return count > 0; };
    const bool is_final = buckets_.phased ? stages_[number].unfinished == 0
                                          : chunks.first <= chunk && chunk <= chunks.last &&
                                                std::none_of(left + chunks.first, left + chunks.last + 1, is_left);
    if (is_final && buckets_.replicated) {
      add_bucket(number, bucket * kBucketKinds + kReduceScatter);
    } else if (is_final && !has_norm() && !buckets_.phased) {
      add_bucket(number, bucket * kBucketKinds + kUpdateBucket);
    }
  }
  finish_sums(number);
}

// Ready what waits for all gradients of the stage, if these are final and reduced.
void Step::finish_sums(int number) {
  Stage& stage = stages_[number];
  if (stage.sums_left > 0 || stage.unfinished > 0) return;
  if (has_norm()) {
    stage.norm_ready = true;
    ++stage.ready;
  } else if (buckets_.phased) {
    add_buckets(number, kUpdateBucket);
  }
}

// The stages meet: it takes its time from the moment when the last has come.
void Step::start_norm(int number) {
  Stage& stage = stages_[number];
  stage.norm_ready = false;
  --stage.ready;
  stage.norm_started = now_;
  if (++norms_started_ < schedule_.shape.stages) return;
  for (int other = 0; other < schedule_.shape.stages; ++other) {
    post(now_ + buckets_.norm_ns, other, kBesideFinishes - norm_task());
  }
}

void Step::finish_norm(int number) {
  Stage& stage = stages_[number];
  --stage.pending;
  stage.end = now_;
  if (keep_rows_) beside_[number].push_back({stage.norm_started, now_, kNormRow, kExposedComm});
  add_buckets(number, kUpdateBucket);
}

// An all-gather of the step before is done: the forwards that waited for it may run, if for no other.
void Step::gathered_before(int number, Code bucket) {
  const Chunks chunks = chunks_of(number, bucket);
  for (int chunk = chunks.first; chunk <= chunks.last; ++chunk) --gathering_[chunk_index(number, chunk)];
  for (Code forward : std::exchange(held_[number], {})) add(number, forward / microbatches_, forward % microbatches_);
}

void Step::add_bucket(int number, Code task) {
  bucket_ready_[bucket_index(number, task)] = 1;
  ++stages_[number].ready;
  ++stages_[number].buckets_ready;
}

void Step::add_buckets(int number, BucketKind kind) {
  for (Code bucket = 0; buckets_.most > 0 && bucket < buckets_.counts[number]; ++bucket) {
    add_bucket(number, bucket * kBucketKinds + kind);
  }
}

// Gradients of the last layers first, parameters of the first.
Code Step::best_bucket(int number, BucketKind kind) const {
  const Code count = static_cast<Code>(buckets_.counts[number]);
  for (Code i = 0; i < count; ++i) {
    const Code task = (kind == kReduceScatter ? i : count - 1 - i) * kBucketKinds + kind;
    if (bucket_ready_[bucket_index(number, task)]) return codes_ + task;
  }
  return -1;
}

void Step::start_bucket(int number, Code task) {
  if (task == norm_task()) return start_norm(number);
  Stage& stage = stages_[number];
  const int kind = task % kBucketKinds;
  const std::size_t index = bucket_index(number, task);
  bucket_ready_[index] = 0;
  --stage.ready;
  --stage.buckets_ready;
  if (kind == kAllGather && !buckets_.phased) --stage.pending;
  if (kind == kUpdateBucket) {
    stage.running = codes_ + task;
    stage.started = now_;
    post(now_ + bucket_ns(number, task), number, kFinishes);
  } else {
    bucket_asked_[index] = 1;
    exchange(number);
  }
}

void Step::exchange(int number) {
  Stage& stage = stages_[number];
  const Code count = static_cast<Code>(buckets_.counts[number]);
  if (stage.exchanging || stage.turn_of == 2 * count) return;
  const Code task = stage.turn_of < count ? stage.turn_of * kBucketKinds + kReduceScatter
                                          : (2 * count - 1 - stage.turn_of) * kBucketKinds + kAllGather;
  const std::size_t index = bucket_index(number, task);
  if (!bucket_asked_[index]) return;
  ++stage.turn_of;
  stage.exchanging = true;
  bucket_started_[index] = std::max(now_, stage.link_free);
  post(bucket_started_[index] + bucket_ns(number, task), number, kBesideFinishes - task);
}

void Step::finish_bucket(int number, Code task) {
  const int kind = task % kBucketKinds;
  Stage& stage = stages_[number];
  if (kind == kAllGather) {
    if (buckets_.phased) --stage.pending;
    gathered_[number * buckets_.most + task / kBucketKinds] = now_;
    return;
  }
  --stage.pending;
  if (kind == kReduceScatter) {
    --stage.sums_left;
    if (!has_norm() && !buckets_.phased) add_bucket(number, task + 1);
    finish_sums(number);
  } else if (--stage.updates_left == 0 && buckets_.phased && buckets_.replicated) {
    add_buckets(number, kAllGather);
  } else if (buckets_.replicated && !buckets_.phased) {
    add_bucket(number, task + 1);
  }
}

void Step::close() {
  std::int64_t last = stages_.front().end;
  for (const Stage& stage : stages_) last = std::max(last, stage.end);
  for (int number = 0; number < schedule_.shape.stages; ++number) {
    wait(number, kDrain, stages_[number].end);
    end_wait(number, last);
  }
}

std::vector<int> Step::stuck() const {
  std::vector<int> numbers;
  for (int number = 0; number < schedule_.shape.stages; ++number) {
    if (stages_[number].pending != 0) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace hpcpipe::simulate
