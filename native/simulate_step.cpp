// The hot loop. Functions stand in the order of the life of an event: arrive or finish, ready what follows, choose, start.
#include "simulate_step.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace hpcpipe::simulate {

namespace {

std::int64_t rounded(double value) { return std::llrint(value); }  // half to even, as Python's round

}  // namespace

bool Step::advance(std::size_t events) {
  Event next;
  for (; events > 0; --events) {
    if (!queue_.pop(next)) return false;
    event(next);
  }
  return true;
}

void Step::event(const Event& event) {
  now_ = event.time;
  Stage& stage = stages_[event.stage];
  if (event.code >= 0) {
    add(event.stage, event.code / microbatches_, event.code % microbatches_);
  } else if (event.code == kFinishes) {
    const Code code = std::exchange(stage.running, -1);
    const bool is_update = code >= codes_;
    const int lane = code / microbatches_;
    const TimeClass what = is_update ? kUpdate : kClassOfKind[lane / chunks_];
    sums_[event.stage][what] += now_ - stage.started;
    if (keep_rows_) rows_[event.stage].push_back({stage.started, now_, code, what});
    stage.idle_cause = kRuntime;
    stage.end = stage.idle_since = now_;
    if (is_update) {
      finish_bucket(event.stage, code - codes_);
    } else {
      finish(event.stage, lane, code % microbatches_);
    }
  } else if (event.code == kBegins) {
    if (event.stage == schedule_.shape.owner(0)) {
      for (std::int32_t m = 0; m < microbatches_; ++m) add(event.stage, schedule_.shape.lane(kForward, 0), m);
    }
  } else {
    const Code task = kBesideFinishes - event.code;
    if (task == norm_task()) {
      finish_norm(event.stage);
      dispatch(event.stage);
      return;
    }
    if (task >= first_gathered()) {
      gathered_before(event.stage, task - first_gathered());
      dispatch(event.stage);
      return;
    }
    if (task % kBucketKinds != kAllGather || buckets_.phased) stage.end = now_;
    if (keep_rows_) {
      beside_[event.stage].push_back({bucket_started_[bucket_index(event.stage, task)], now_, codes_ + task, kExposedComm});
    }
    finish_bucket(event.stage, task);
    stage.exchanging = false;
    exchange(event.stage);
  }
  dispatch(event.stage);
}

// StagePlan.finish, then the message.
void Step::finish(int number, int lane, std::int32_t microbatch) {
  Stage& stage = stages_[number];
  const int kind = lane / chunks_, chunk = lane % chunks_;
  const Kind last_kind = schedule_.split ? kWeight : kBackward;
  --stage.pending;
  Follower follower{-1, -1};
  if (kind != kWeight) {
    follower = schedule_.followers[2 * chunk_index(number, 0) + kind * chunks_ + chunk];
    if (follower.stage == number) add(number, follower.lane, microbatch);
    if (kind == kBackward && schedule_.split) {
      if (!schedule_.ordered || microbatch == next_weight_[chunk_index(number, chunk)]) {
        add(number, schedule_.shape.lane(kWeight, chunk), microbatch);
      } else {
        waiting_weights_[chunk_index(number, chunk) * words_ + microbatch / 64] |= std::uint64_t{1} << microbatch % 64;
      }
    }
  }
  if (kind == kBackward) {
    leave(number, kInFlight, microbatch);
    leave(number, in_flight_of(chunk), microbatch);
  }
  if (kind == last_kind) {
    leave(number, kStash, microbatch);
    leave(number, stash_of(chunk), microbatch);
    finish_gradient(number, chunk);
    if (schedule_.chained) {
      ++next_weight_[chunk_index(number, chunk)];
      const std::int32_t next = microbatch + 1;
      if (next < microbatches_) {
        std::uint64_t& word = waiting_weights_[chunk_index(number, chunk) * words_ + next / 64];
        const std::uint64_t bit = std::uint64_t{1} << next % 64;
        if (word & bit) {
          word &= ~bit;
          add(number, lane, next);
        }
      }
    }
  }
  if (follower.stage >= 0 && follower.stage != number) send(number, follower.stage, follower.lane * microbatches_ + microbatch);
}

void Step::send(int source, int target, Code code) {
  const std::int64_t there =
      network_.arrival ? network_.arrival(source, target, code, now_) : link_arrival(source, target, code);
  if (keep_rows_) messages_.push_back({now_, there, source, target, code});
  post(std::max(there + network_.agreement_ns, stages_[target].begin), target, code);
}

// A stage sends to the next and the previous one only, in a ring.
std::size_t Step::edge(int source, int target) const {
  return 2 * static_cast<std::size_t>(source) + (target == (source + 1) % schedule_.shape.stages ? 0 : 1);
}

// Network.arrival of links.py.
std::int64_t Step::link_arrival(int source, int target, Code code) {
  const Link& link = network_.link;
  std::int64_t& free =
      link_free_[link.duplex ? edge(source, target) : edge(std::min(source, target), std::max(source, target))];
  const std::int64_t end = free = std::max(now_, free) + link.occupied_ns;
  std::int64_t delay = latency_;
  if (link.delay == Link::Delay::bursts) {
    if (std::fmod(static_cast<double>(end), link.every) < link.length) delay = rounded(link.base * link.factor);
  } else if (link.sigma != 0.0) {
    const int lane = code / microbatches_;
    const Place place = link_place_.at(source).at(target).at(lane / chunks_).at(code % microbatches_).at(lane % chunks_);
    delay = rounded(link.base * std::exp(link.sigma * place.normal()));
  }
  if (link.overtaking) return end + delay;
  std::int64_t& last = link_last_[edge(source, target)];
  return last = std::max(end + delay, last);
}

void Step::dispatch(int number) {
  Stage& stage = stages_[number];
  while (stage.running < 0 && stage.pending > 0) {
    const Code code = stage.ready > 0 ? choose(number) : -1;
    if (code < 0) {
      stage.turn = schedule_.rule.first;
      wait(number, why_idle(number), now_);
      return;
    }
    end_wait(number, now_);
    if (code >= codes_) {
      start_bucket(number, code - codes_);
      continue;
    }
    const int lane = code / microbatches_, kind = lane / chunks_;
    const std::int32_t microbatch = code % microbatches_;
    remove(number, lane, microbatch);
    ++stage.next;
    if (kind == kWeight || !schedule_.rule.rounds) {
      stage.turn = schedule_.rule.first;
    } else {
      stage.turn = kind == kBackward ? kForward : kBackward;
    }
    stage.has_started = true;
    if (kind == kForward) start_forward(number, lane % chunks_, microbatch);
    stage.running = code;
    stage.started = now_;
    post(now_ + duration(number, code), number, kFinishes);
  }
}

std::int64_t Step::duration(int stage, Code code) const {
  const int lane = code / microbatches_;
  return durations_.data[stage * durations_.stage + (lane / chunks_) * durations_.kind + (lane % chunks_) * durations_.chunk +
                         (code % microbatches_) * durations_.microbatch];
}

// Exchanges first, which take no time of the stage; updates where nothing else can run.
Code Step::choose(int number) {
  const Stage& stage = stages_[number];
  if (stage.buckets_ready > 0) {
    for (BucketKind kind : {kReduceScatter, kAllGather}) {
      if (const Code task = best_bucket(number, kind); task >= 0) return task;
    }
  }
  if (stage.norm_ready) return codes_ + norm_task();
  if (schedule_.is_fixed && stage.next < schedule_.lengths[number]) {
    const Code code = schedule_.orders[number][stage.next];
    if (contains(number, code / microbatches_, code % microbatches_)) return code;
  } else if (const Code best = best_candidate(number); best >= 0) {
    return best;
  }
  return stage.buckets_ready > 0 ? best_bucket(number, kUpdateBucket) : -1;
}

Code Step::best_candidate(int number) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  Code best = -1;
  visit_candidates(number, [&](int lane, std::int32_t microbatch) {
    const std::int64_t here = rank(number, lane, microbatch);
    if (here < least) {
      least = here;
      best = lane * microbatches_ + microbatch;
    }
    return true;
  });
  return best;
}

std::int64_t Step::rank(int number, int lane, std::int32_t microbatch) const {
  if (!schedule_.is_rule) {
    if (schedule_.is_fixed) return schedule_.lengths[number] + microbatch;  // only what the order does not list is left
    return schedule_.keys[code_index(number, lane, microbatch)];
  }
  const int kind = lane / chunks_, chunk = lane % chunks_;
  if (kind == kWeight) return (std::int64_t{2} << 40) + std::int64_t{microbatch} * chunks_ + chunks_ - 1 - chunk;
  const std::int64_t off_turn = kind == stages_[number].turn ? 0 : 1;
  return (off_turn << 40) + std::int64_t{kind == kBackward ? chunks_ - 1 - chunk : chunk} * microbatches_ + microbatch;
}

// Calls visit(lane, microbatch) for the best task of every lane that may run, until it returns false (stage.py).
template <typename Visit>
void Step::visit_candidates(int number, Visit visit) {
  const Stage& stage = stages_[number];
  const std::uint16_t* order = lane_order_.data() + lane_index(number, 0);
  bool any_closed = false;
  for (int i = 0; i < stage.lanes_seen; ++i) {
    const int lane = order[i];
    if (lanes_of_stages_[lane_index(number, lane)].count == 0) continue;
    if (stage.capped && lane < chunks_ && !open(number, lane)) {
      any_closed = true;
    } else if (!visit(lane, top(number, lane))) {
      return;
    }
  }
  if (!any_closed) return;
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    if (lanes_of_stages_[lane_index(number, chunk)].count == 0 || open(number, chunk)) continue;
    for (int which : counts_of(chunk)) {
      const Count& cap = count_[count_index(number, which)];
      const std::int32_t oldest = cap.oldest;
      if (cap.limit >= 0 && oldest < microbatches_ && contains(number, chunk, oldest) && admits(number, chunk, oldest) &&
          !visit(chunk, oldest)) {
        return;
      }
    }
  }
}

TimeClass Step::why_idle(int number) {
  const Stage& stage = stages_[number];
  if (stage.ready > 0) {
    bool any = false;
    visit_candidates(number, [&](int, std::int32_t) {
      any = true;
      return false;
    });
    return any ? kOrder : kCap;
  }
  if (!held_[number].empty() || stage.unfinished == 0) return kExposedComm;
  return stage.has_started ? kDependency : kWarmup;
}

void Step::add(int number, int lane, std::int32_t microbatch) {
  if (lane < chunks_ && gathering_[chunk_index(number, lane)] > 0) {
    held_[number].push_back(lane * microbatches_ + microbatch);
    return;
  }
  Lane& here = lanes_of_stages_[lane_index(number, lane)];
  const std::int32_t place = schedule_.ranks.empty() ? microbatch : schedule_.ranks[code_index(number, lane, microbatch)];
  std::uint64_t* words = bits_.data() + lane_index(number, lane) * words_;
  if (here.count == 0) {
    here.first = place;
    Stage& stage = stages_[number];
    std::uint16_t* order = lane_order_.data() + lane_index(number, 0);
    if (std::find(order, order + stage.lanes_seen, lane) == order + stage.lanes_seen) order[stage.lanes_seen++] = lane;
  } else {
    here.first = std::min(here.first, place);
  }
  words[place / 64] |= std::uint64_t{1} << place % 64;
  ++here.count;
  ++stages_[number].ready;
}

void Step::remove(int number, int lane, std::int32_t microbatch) {
  const std::int32_t place = schedule_.ranks.empty() ? microbatch : schedule_.ranks[code_index(number, lane, microbatch)];
  bits_[lane_index(number, lane) * words_ + place / 64] &= ~(std::uint64_t{1} << place % 64);
  --lanes_of_stages_[lane_index(number, lane)].count;
  --stages_[number].ready;
}

bool Step::contains(int number, int lane, std::int32_t microbatch) const {
  const std::int32_t place = schedule_.ranks.empty() ? microbatch : schedule_.ranks[code_index(number, lane, microbatch)];
  return bits_[lane_index(number, lane) * words_ + place / 64] >> place % 64 & 1;
}

std::int32_t Step::top(int number, int lane) {
  Lane& here = lanes_of_stages_[lane_index(number, lane)];
  const std::uint64_t* words = bits_.data() + lane_index(number, lane) * words_;
  std::int32_t word = here.first / 64;
  while (words[word] == 0) ++word;
  here.first = word * 64 + __builtin_ctzll(words[word]);
  return schedule_.microbatches.empty() ? here.first : schedule_.microbatches[code_index(number, lane, here.first)];
}

bool Step::room(int number, int which) const {
  const std::size_t index = count_index(number, which);
  const Count& count = count_[index];
  if (count.limit < 0) return true;
  std::int32_t reserved = 0;
  if (stages_[number].reserves && count.oldest < microbatches_) reserved = to_start_[index * microbatches_ + count.oldest];
  return count.now + reserved < count.limit;
}

bool Step::open(int number, int chunk) const {
  for (int which : counts_of(chunk)) {
    if (!room(number, which)) return false;
  }
  return true;
}

bool Step::admits(int number, int chunk, std::int32_t microbatch) const {
  for (int which : counts_of(chunk)) {
    const bool favours_oldest = stages_[number].reserves || (chunks_ > 1 && which <= kStash);
    const bool favoured = favours_oldest && count_[count_index(number, which)].oldest == microbatch;
    if (!favoured && !room(number, which)) return false;
  }
  return true;
}

void Step::start_forward(int number, int chunk, std::int32_t microbatch) {
  const Stage& stage = stages_[number];
  for (int which : counts_of(chunk)) {
    Count& count = count_[count_index(number, which)];
    count.peak = std::max(count.peak, ++count.now);
    if (stage.reserves) --to_start_[count_index(number, which) * microbatches_ + microbatch];
  }
}

// A forward of this micro-batch is finished for a cap; the oldest that it waits for may move on.
void Step::leave(int number, int which, std::int32_t microbatch) {
  Count& count = count_[count_index(number, which)];
  --count.now;
  if (!stages_[number].capped) return;
  std::uint16_t* to_finish = to_finish_.data() + count_index(number, which) * microbatches_;
  --to_finish[microbatch];
  while (count.oldest < microbatches_ && to_finish[count.oldest] == 0) ++count.oldest;
}

void Step::end_wait(int number, std::int64_t now) {
  Stage& stage = stages_[number];
  if (now > stage.idle_since) {
    sums_[number][stage.idle_cause] += now - stage.idle_since;
    if (keep_rows_) rows_[number].push_back({stage.idle_since, now, -1, stage.idle_cause});
  }
  stage.idle_cause = kRuntime;
  stage.idle_since = now;
}

void Step::wait(int number, TimeClass cause, std::int64_t now) {
  Stage& stage = stages_[number];
  if (cause == stage.idle_cause) return;
  end_wait(number, now);
  stage.idle_cause = cause;
  stage.idle_since = now;
}

}  // namespace hpcpipe::simulate
