// The types of number that buckets hold; knows neither MPI nor Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpcpipe {

enum class Element : std::uint8_t { float32, float64, float16, bfloat16 };

constexpr std::size_t size_of(Element element) {
  return element == Element::float64 ? 8 : element == Element::float32 ? 4 : 2;
}

constexpr const char* name_of(Element element) {
  switch (element) {
    case Element::float32:
      return "float32";
    case Element::float64:
      return "float64";
    case Element::float16:
      return "float16";
    case Element::bfloat16:
      return "bfloat16";
  }
  return "";
}

}  // namespace hpcpipe
