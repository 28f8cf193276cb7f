// The vectorised kernels against a scalar reference that makes every number by the definition of its format.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../kernels.hpp"
#include "check.hpp"

namespace hpcpipe::testing {

namespace {

struct Format {
  int mantissa_bits, exponent_bits;
};
constexpr Format kHalf{10, 5}, kBrain{7, 8};
constexpr Element kElements[] = {Element::float32, Element::float64, Element::float16, Element::bfloat16};

double decode(std::uint16_t bits, Format format) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const int hidden = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  return sign * std::ldexp(hidden + mantissa, std::max(exponent, 1) - bias - format.mantissa_bits);
}

// The nearest number of the format, of two the even one; the sign of zero is kept.
std::uint16_t encode(double value, Format format) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const int all_ones = (1 << format.exponent_bits) - 1;
  const auto infinity = static_cast<std::uint16_t>(all_ones << format.mantissa_bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | (1 << (format.mantissa_bits - 1)));
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return sign;
  if (std::isinf(magnitude)) return sign | infinity;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const auto steps = static_cast<long>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  // As numbers of a format are in the order of their bits, carrying into the exponent is right, up to infinity.
  const long bits = ((exponent + bias - 1L) << format.mantissa_bits) + steps;
  return sign | static_cast<std::uint16_t>(std::min<long>(bits, infinity));
}

double read(Element element, const unsigned char* at) {
  float single;
  double whole;
  std::uint16_t half;
  switch (element) {
    case Element::float32:
      std::memcpy(&single, at, sizeof single);
      return single;
    case Element::float64:
      std::memcpy(&whole, at, sizeof whole);
      return whole;
    case Element::float16:
    case Element::bfloat16:
      break;
  }
  std::memcpy(&half, at, sizeof half);
  return decode(half, element == Element::float16 ? kHalf : kBrain);
}

void write(Element element, unsigned char* at, double value) {
  const auto single = static_cast<float>(value);
  if (element == Element::float64) {
    std::memcpy(at, &value, sizeof value);
  } else if (element == Element::float32) {
    std::memcpy(at, &single, sizeof single);
  } else {
    const std::uint16_t half = encode(single, element == Element::float16 ? kHalf : kBrain);
    std::memcpy(at, &half, sizeof half);
  }
}

// One sum in the type that sums of this element are made in.
double add(Element element, double a, double b) {
  return element == Element::float64 ? a + b : static_cast<double>(static_cast<float>(a) + static_cast<float>(b));
}

// Any bits at all, so NaN, infinities and denormals too.
std::vector<unsigned char> drawn(Element element, std::size_t length, Draws& draws) {
  std::vector<unsigned char> bytes(length * size_of(element));
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(draws.bits());
  return bytes;
}

void check_same(Element element, const unsigned char* ours, const unsigned char* wanted, std::size_t length,
                const char* what) {
  const std::size_t size = size_of(element);
  for (std::size_t i = 0; i < length; ++i) {
    const double a = read(element, ours + i * size), b = read(element, wanted + i * size);
    const bool same = std::isnan(b) ? std::isnan(a) : std::memcmp(ours + i * size, wanted + i * size, size) == 0;
    CHECK(same, "%s of %s, element %zu of %zu: %.17g, not %.17g", what, name_of(element), i, length, a, b);
  }
}

void check_reduce(Element element, std::size_t num_sources, std::size_t length, std::size_t in_place, Draws& draws) {
  const std::size_t size = size_of(element);
  std::vector<std::vector<unsigned char>> given;
  std::vector<const void*> sources;
  for (std::size_t n = 0; n < num_sources; ++n) given.push_back(drawn(element, length + 1, draws));
  for (auto& source : given) sources.push_back(source.data() + size);  // not aligned to vectors
  std::vector<unsigned char> wanted(length * size), apart((length + 1) * size);
  for (std::size_t i = 0; i < length; ++i) {
    double sum = read(element, given[0].data() + (i + 1) * size);
    for (std::size_t n = 1; n < num_sources; ++n) sum = add(element, sum, read(element, given[n].data() + (i + 1) * size));
    write(element, wanted.data() + i * size, sum);
  }
  unsigned char* into = in_place < num_sources ? given[in_place].data() + size : apart.data() + size;
  reduce(element, into, sources.data(), num_sources, length);
  check_same(element, into, wanted.data(), length, "a sum");
}

void check_transfer(Element into_type, Element from_type, std::size_t length, Draws& draws) {
  const auto from = drawn(from_type, length, draws);
  auto into = drawn(into_type, length, draws);
  std::vector<unsigned char> wanted(into.size()), added(into.size());
  for (std::size_t i = 0; i < length; ++i) {
    const double value = read(from_type, from.data() + i * size_of(from_type));
    write(into_type, wanted.data() + i * size_of(into_type), value);
    const double before = read(into_type, into.data() + i * size_of(into_type));
    write(into_type, added.data() + i * size_of(into_type), add(into_type, before, value));
  }
  accumulate(into_type, into.data(), from_type, from.data(), length);
  check_same(into_type, into.data(), added.data(), length, "adding");
  convert(into_type, into.data(), from_type, from.data(), length);
  check_same(into_type, into.data(), wanted.data(), length, "a conversion");
}

// Whole numbers have exact sums in any order; one square beyond fp32 must not overflow.
void check_square_sum(Element element, std::size_t length, Draws& draws) {
  const std::size_t size = size_of(element);
  std::vector<unsigned char> bytes((length + 1) * size);
  double wanted = 0.0;
  for (std::size_t i = 0; i < length; ++i) {
    const double value = i == 3 && element != Element::float16 ? std::ldexp(1.0, 100) : static_cast<double>(draws.bits() % 200) - 100;
    write(element, bytes.data() + (i + 1) * size, value);  // not aligned to vectors
    if (i != 3) wanted += value * value;
  }
  const bool large = length > 3 && element != Element::float16;
  if (large) {
    const double sum = square_sum(element, bytes.data() + size, length);
    CHECK(sum == std::ldexp(1.0, 200), "%s: %g, not 2^200", name_of(element), sum);
    write(element, bytes.data() + 4 * size, 0.0);
  } else if (length > 3) {
    const double third = read(element, bytes.data() + 4 * size);
    wanted += third * third;
  }
  const double sum = square_sum(element, bytes.data() + size, length);
  CHECK(sum == wanted, "squares of %zu %s: %g, not %g", length, name_of(element), sum, wanted);
  if (length == 0) return;
  write(element, bytes.data() + length * size, std::numeric_limits<double>::quiet_NaN());
  CHECK(std::isnan(square_sum(element, bytes.data() + size, length)), "%s: not a number is lost", name_of(element));
}

void check_every_half(Element element) {
  std::vector<std::uint16_t> halves(1 << 16), back(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> floats(halves.size());
  convert(Element::float32, floats.data(), element, halves.data(), halves.size());
  convert(element, back.data(), Element::float32, floats.data(), halves.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const double wanted = decode(halves[i], element == Element::float16 ? kHalf : kBrain);
    if (std::isnan(wanted)) {
      CHECK(std::isnan(floats[i]), "%s %zx", name_of(element), i);
    } else {
      CHECK(floats[i] == wanted && back[i] == halves[i], "%s %zx: %g, not %g", name_of(element), i,
            static_cast<double>(floats[i]), wanted);
    }
  }
}

}  // namespace

}  // namespace hpcpipe::testing

int main() {
  using namespace hpcpipe;
  using namespace hpcpipe::testing;
  Draws draws(1);
  for (Element element : {Element::float16, Element::bfloat16}) check_every_half(element);
  for (Element element : kElements) {
    for (std::size_t num_sources : {2, 3, 4, 15}) {
      for (std::size_t length = 0; length < 70; ++length) check_reduce(element, num_sources, length, length % 17, draws);
      for (std::size_t length : {1023, 1024, 1025, 5000}) {
        check_reduce(element, num_sources, length, num_sources - 1, draws);
      }
    }
    for (std::size_t length : {0, 1, 4, 31, 32, 33, 100, 10007}) check_square_sum(element, length, draws);
    for (Element from : kElements) {
      for (std::size_t length : {0, 1, 31, 64, 10007}) check_transfer(element, from, length, draws);
    }
  }
  std::printf("kernels for %s agree with the scalar reference\n", kernel_set());
}
