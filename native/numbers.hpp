// How one number of each type becomes a float (or double) and back, without branches, so that loops over it vectorise.
// Rounding is to nearest even; denormal halves are exact even where the processor flushes denormal floats to zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "elements.hpp"

namespace hpcpipe {

inline float as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t as_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Stored is what lies in memory, Sum what sums are made in.
struct Float32 {
  using Stored = float;
  using Sum = float;
  static Sum load(Stored stored) { return stored; }
  static Stored store(Sum sum) { return sum; }
};

struct Float64 {
  using Stored = double;
  using Sum = double;
  static Sum load(Stored stored) { return stored; }
  static Stored store(Sum sum) { return sum; }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored stored) { return as_float(static_cast<std::uint32_t>(stored) << 16); }
  static Stored store(Sum sum) {
    const std::uint32_t bits = as_bits(sum);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
    return static_cast<Stored>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
  }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Sum = float;

  static Sum load(Stored stored) {
    constexpr std::uint32_t least_normal = 113U << 23;  // 2^-14
    const std::uint32_t magnitude = (stored & 0x7fffU) << 13;
    const std::uint32_t exponent = magnitude & (0x1fU << 23);
    const std::uint32_t normal = magnitude + (112U << 23);
    const std::uint32_t denormal = as_bits(as_float(normal + (1U << 23)) - as_float(least_normal));
    const std::uint32_t infinite = magnitude + (224U << 23);  // the same for NaN
    const std::uint32_t bits = exponent == 0 ? denormal : exponent == (0x1fU << 23) ? infinite : normal;
    return as_float(bits | (static_cast<std::uint32_t>(stored & 0x8000U) << 16));
  }

  static Stored store(Sum sum) {
    constexpr std::uint32_t infinity = 255U << 23;
    constexpr std::uint32_t least_overflow = (127U + 16U) << 23;
    constexpr std::uint32_t least_normal = 113U << 23;
    constexpr std::uint32_t align = 126U << 23;  // 0.5: adding it moves a denormal's bits to where a half has them
    const std::uint32_t bits = as_bits(sum);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    const std::uint32_t special = magnitude > infinity ? 0x7e00U : 0x7c00U;
    const std::uint32_t denormal = as_bits(as_float(magnitude) + as_float(align)) - align;
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    const std::uint32_t half = magnitude >= least_overflow ? special : magnitude < least_normal ? denormal : normal;
    return static_cast<Stored>(half | ((bits >> 16) & 0x8000U));
  }
};

// Calls visit(Float32{}) and so on, for the type that an Element names.
template <typename Visit>
inline void with_number(Element element, Visit visit) {
  switch (element) {
    case Element::float32:
      return visit(Float32{});
    case Element::float64:
      return visit(Float64{});
    case Element::float16:
      return visit(Float16{});
    case Element::bfloat16:
      return visit(BFloat16{});
  }
}

}  // namespace hpcpipe
