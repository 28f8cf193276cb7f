// The draws of hpcpipe/plan/draws.py, bit for bit: SplitMix64's finaliser chained over a place, then Box and Muller.
// The same libm serves Python's math module, and this code is built without contraction of a*b+c. Knows no Python.
#pragma once

#include <cmath>
#include <cstdint>

namespace hpcpipe::simulate {

inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// A place (seed, n, n, ...) as far as it has been hashed; draws come from its extensions.
class Place {
 public:
  explicit Place(std::uint64_t seed) : state_(mix(seed)) {}
  Place at(std::int64_t number) const { return Place(mix(state_ ^ static_cast<std::uint64_t>(number)), 0); }

  double uniform() const { return (static_cast<double>(state_ >> 11) + 0.5) * 0x1p-53; }
  double normal() const {
    constexpr double pi = 3.141592653589793;
    return std::sqrt(-2.0 * std::log(at(1).uniform())) * std::cos(2.0 * pi * at(2).uniform());
  }
  double lognormal(double sigma) const { return std::exp(sigma * normal() - 0.5 * sigma * sigma); }

 private:
  Place(std::uint64_t state, int) : state_(state) {}
  std::uint64_t state_;
};

}  // namespace hpcpipe::simulate
