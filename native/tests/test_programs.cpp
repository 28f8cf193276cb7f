// Plays the programs of 1 to 16 ranks in one process, messages arriving in drawn orders, and compares with plain sums.
// A send ends only when its receive has been started, as MPI may do it; what is under way is watched for forbidden accesses.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "check.hpp"

namespace hpcpipe::testing {

namespace {

constexpr std::size_t kMostSends = 4;  // fewer than the library allows itself, so that deadlocks show

struct Case {
  Operation operation;
  Algorithm algorithm;
  int ranks;
  std::size_t block, chunk;
};

struct Player {
  std::vector<Program> programs;
  std::size_t current = 0;
  std::size_t started_receives = 0, received = 0, started_sends = 0, sent = 0, reduced = 0;
  std::vector<bool> arrived, taken;  // [receive], [send]
  std::vector<float> data, scratch;
  std::vector<std::vector<float>> snapshots;  // [send]: what it was started with

  bool done() const { return current == programs.size(); }
  float* at(const Place& place) { return (place.scratch ? scratch : data).data() + place.begin; }
};

struct Posted {
  Player* player;
  std::size_t index;
};

class Game {
 public:
  Game(const Case& given, std::uint64_t seed) : case_(given), draws_(seed), players_(static_cast<std::size_t>(given.ranks)) {
    for (int rank = 0; rank < given.ranks; ++rank) {
      Player& player = players_[static_cast<std::size_t>(rank)];
      player.programs = make_programs(given.operation, given.algorithm, {rank, given.ranks, given.block, given.chunk});
      player.data.resize(static_cast<std::size_t>(given.ranks) * given.block);
      for (float& value : player.data) value = std::ldexp(static_cast<float>(draws_.bits() >> 40), -20) - 8.0F;
      given_.push_back(player.data);
      open(player);
    }
  }

  void play() {
    std::size_t idle_rounds = 0;
    while (true) {
      bool all_done = true;
      for (const Player& player : players_) all_done = all_done && player.done();
      if (all_done) return;
      const std::size_t rank = draws_.below(players_.size());
      const bool moved = step(static_cast<int>(rank)) | deliver();
      idle_rounds = moved ? 0 : idle_rounds + 1;
      CHECK(idle_rounds < 4000, "%s of %d ranks stands still", name_of(case_.algorithm), case_.ranks);
    }
  }

  void check() {
    const auto ranks = static_cast<std::size_t>(case_.ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < ranks * case_.block; ++i) {
        const std::size_t block = i / case_.block;
        if (case_.operation == Operation::reduce_scatter && block != rank) continue;
        const float ours = players_[rank].data[i];
        if (case_.operation == Operation::all_gather) {
          CHECK(ours == given_[block][i], "rank %zu of %zu, element %zu", rank, ranks, i);
        } else if (case_.algorithm == Algorithm::recursive) {
          double sum = 0.0, magnitude = 0.0;
          for (const auto& data : given_) sum += data[i], magnitude += std::fabs(data[i]);
          CHECK(std::fabs(ours - sum) <= ranks * 0x1p-24 * magnitude, "rank %zu of %zu, element %zu", rank, ranks, i);
        } else {  // in the order of the ring
          float sum = given_[(block + 1) % ranks][i];
          for (std::size_t distance = 2; distance <= ranks; ++distance) sum += given_[(block + distance) % ranks][i];
          CHECK(ours == sum, "%s, rank %zu of %zu, element %zu", name_of(case_.algorithm), rank, ranks, i);
        }
      }
    }
  }

 private:
  void open(Player& player) {
    while (!player.done() && player.programs[player.current].receives.empty() &&
           player.programs[player.current].sends.empty()) {
      ++player.current;
    }
    if (player.done()) return;
    const Program& program = player.programs[player.current];
    player.started_receives = player.received = player.started_sends = player.sent = player.reduced = 0;
    player.arrived.assign(program.receives.size(), false);
    player.taken.assign(program.sends.size(), false);
    player.snapshots.assign(program.sends.size(), {});
    player.scratch.assign(program.scratch, std::numeric_limits<float>::quiet_NaN());
  }

  // One thing that this rank can do; true if it did one.
  bool step(int rank) {
    Player& player = players_[static_cast<std::size_t>(rank)];
    if (player.done()) return false;
    const Program& program = player.programs[player.current];
    if (player.started_receives < program.receives.size() &&
        program.receives[player.started_receives].after <= player.received) {
      const Receive& receive = program.receives[player.started_receives];
      const Request& request = program.requests[receive.request];
      CHECK(!request.sends && receive.length <= request.at.length, "rank %d", rank);
      std::fill_n(player.at(request.at), request.at.length, std::numeric_limits<float>::quiet_NaN());
      receives_[{request.peer, rank}].push_back({&player, player.started_receives++});
      return true;
    }
    if (player.started_sends < program.sends.size() && program.sends[player.started_sends].after <= player.received &&
        player.started_sends - player.sent < kMostSends) {
      const Request& request = program.requests[program.sends[player.started_sends].request];
      CHECK(request.sends, "rank %d", rank);
      const float* from = player.at(request.at);
      player.snapshots[player.started_sends].assign(from, from + request.at.length);
      sends_[{rank, request.peer}].push_back({&player, player.started_sends++});
      return true;
    }
    if (player.received < player.started_receives && player.arrived[player.received]) {
      for (; player.reduced < program.receives[player.received].reductions_end; ++player.reduced) {
        const Reduction& reduction = program.reductions[player.reduced];
        for (std::size_t i = 0; i < reduction.into.length; ++i) {
          float sum = player.at(reduction.sources[0])[i];
          for (std::size_t n = 1; n < reduction.sources.size(); ++n) sum += player.at(reduction.sources[n])[i];
          player.at(reduction.into)[i] = sum;
        }
      }
      ++player.received;
      return true;
    }
    if (player.sent < player.started_sends && player.taken[player.sent]) {
      const Request& request = program.requests[program.sends[player.sent].request];
      const float* from = player.at(request.at);
      const auto& snapshot = player.snapshots[player.sent];
      CHECK(std::equal(snapshot.begin(), snapshot.end(), from), "rank %d changed what it was sending", rank);
      ++player.sent;
      return true;
    }
    if (player.received == program.receives.size() && player.sent == program.sends.size()) {
      ++player.current;
      open(player);
      return true;
    }
    return false;
  }

  // The oldest message of some pair of ranks whose receive has been started arrives.
  bool deliver() {
    std::vector<std::pair<int, int>> ready;
    for (const auto& [pair, posted] : sends_) {
      if (!posted.empty() && !receives_[pair].empty()) ready.push_back(pair);
    }
    if (ready.empty() || draws_.below(3) == 0) return !ready.empty();
    const auto pair = ready[draws_.below(ready.size())];
    const Posted from = sends_[pair].front(), to = receives_[pair].front();
    sends_[pair].pop_front();
    receives_[pair].pop_front();
    const Program& theirs = to.player->programs[to.player->current];
    const Receive& receive = theirs.receives[to.index];
    const auto& message = from.player->snapshots[from.index];
    CHECK(message.size() == receive.length, "%d to %d: %zu elements, %zu due", pair.first, pair.second, message.size(),
          receive.length);
    std::copy(message.begin(), message.end(), to.player->at(theirs.requests[receive.request].at));
    to.player->arrived[to.index] = true;
    from.player->taken[from.index] = true;
    return true;
  }

  Case case_;
  Draws draws_;
  std::vector<Player> players_;
  std::vector<std::vector<float>> given_;
  std::map<std::pair<int, int>, std::deque<Posted>> sends_, receives_;
};

}  // namespace

}  // namespace hpcpipe::testing

int main() {
  using namespace hpcpipe;
  using namespace hpcpipe::testing;
  std::size_t number = 0;
  for (Operation operation : {Operation::reduce_scatter, Operation::all_gather}) {
    for (Algorithm algorithm : {Algorithm::ring, Algorithm::recursive, Algorithm::direct}) {
      for (int ranks = 1; ranks <= 16; ++ranks) {
        for (const auto& [block, chunk] : {std::pair<std::size_t, std::size_t>{0, 4}, {1, 1}, {7, 3}, {5, 100}}) {
          for (std::uint64_t seed : {1, 2}) {
            Game game({operation, algorithm, ranks, block, chunk}, seed);
            game.play();
            game.check();
            ++number;
          }
        }
      }
    }
  }
  std::printf("%zu games of up to 16 ranks ended as they should\n", number);
}
