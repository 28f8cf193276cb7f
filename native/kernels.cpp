// See kernels.hpp. Each loop is written once and compiled for several processors; the first call picks among them.
#include "kernels.hpp"

#include <algorithm>
#include <cstring>

#include "numbers.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define HPCPIPE_X86 1
#else
#define HPCPIPE_X86 0
#endif

namespace hpcpipe {

namespace {

constexpr std::size_t kLanes = 32;   // sums of squares that go on beside each other
constexpr std::size_t kTile = 1024;  // sums of more than two sources pass through a tile that stays in the first cache

// Loops over arrays that are disjoint or the very same: nothing is carried from one element to the next.
#define HPCPIPE_INLINE [[gnu::always_inline]] inline

template <typename N>
HPCPIPE_INLINE void add_two(typename N::Stored* into, const typename N::Stored* a, const typename N::Stored* b,
                            std::size_t length) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < length; ++i) into[i] = N::store(N::load(a[i]) + N::load(b[i]));
}

template <typename N>
HPCPIPE_INLINE void add_many(typename N::Stored* into, const void* const* sources, std::size_t num_sources,
                             std::size_t length) {
  typename N::Sum tile[kTile];
  for (std::size_t begin = 0; begin < length; begin += kTile) {
    const std::size_t count = std::min(kTile, length - begin);
    const auto source = [&](std::size_t index) {
      return static_cast<const typename N::Stored*>(sources[index]) + begin;
    };
    const auto *first = source(0), *second = source(1);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) tile[i] = N::load(first[i]) + N::load(second[i]);
    for (std::size_t index = 2; index + 1 < num_sources; ++index) {
      const auto* next = source(index);
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) tile[i] += N::load(next[i]);
    }
    const auto* last = source(num_sources - 1);
    auto* out = into + begin;
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) out[i] = N::store(tile[i] + N::load(last[i]));
  }
}

template <typename N>
HPCPIPE_INLINE void reduce_with(void* into, const void* const* sources, std::size_t num_sources, std::size_t length) {
  using Stored = typename N::Stored;
  if (num_sources == 2) {
    add_two<N>(static_cast<Stored*>(into), static_cast<const Stored*>(sources[0]),
               static_cast<const Stored*>(sources[1]), length);
  } else {
    add_many<N>(static_cast<Stored*>(into), sources, num_sources, length);
  }
}

template <typename Into, typename From, bool adds>
HPCPIPE_INLINE void transfer_with(void* into, const void* from, std::size_t length) {
  auto* out = static_cast<typename Into::Stored*>(into);
  const auto* in = static_cast<const typename From::Stored*>(from);
#pragma GCC ivdep
  for (std::size_t i = 0; i < length; ++i) {
    const auto value = static_cast<typename Into::Sum>(From::load(in[i]));
    out[i] = Into::store(adds ? Into::load(out[i]) + value : value);
  }
}

template <typename N>
HPCPIPE_INLINE double square_sum_of(const void* from, std::size_t length) {
  const auto* in = static_cast<const typename N::Stored*>(from);
  double lanes[kLanes] = {};
  const std::size_t whole = length - length % kLanes;
  for (std::size_t begin = 0; begin < whole; begin += kLanes) {
#pragma GCC ivdep
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(N::load(in[begin + lane]));
      lanes[lane] += value * value;
    }
  }
  for (std::size_t i = whole; i < length; ++i) {
    const auto value = static_cast<double>(N::load(in[i]));
    lanes[i - whole] += value * value;
  }
  double sum = 0.0;
  for (double lane : lanes) sum += lane;
  return sum;
}

using Reduce = void (*)(void*, const void* const*, std::size_t, std::size_t);
using Transfer = void (*)(void*, const void*, std::size_t);

// One set of functions a target; the attribute makes the inlined loops use its vectors.
#define HPCPIPE_KERNELS(NAME, TARGET)                                                                             \
  struct NAME {                                                                                                   \
    template <typename N>                                                                                         \
    TARGET static void reduce(void* into, const void* const* sources, std::size_t count, std::size_t length) {    \
      reduce_with<N>(into, sources, count, length);                                                               \
    }                                                                                                             \
    template <typename Into, typename From, bool adds>                                                            \
    TARGET static void transfer(void* into, const void* from, std::size_t length) {                               \
      transfer_with<Into, From, adds>(into, from, length);                                                        \
    }                                                                                                             \
    template <typename N>                                                                                         \
    TARGET static double square_sum(const void* from, std::size_t length) {                                       \
      return square_sum_of<N>(from, length);                                                                      \
    }                                                                                                             \
  };

HPCPIPE_KERNELS(Baseline, )
#if HPCPIPE_X86
HPCPIPE_KERNELS(Avx2, __attribute__((target("avx2"))))
HPCPIPE_KERNELS(Avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"))))
#endif

enum class Set { baseline, avx2, avx512 };

Set best_set() {
#if HPCPIPE_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return Set::avx512;
  }
  if (__builtin_cpu_supports("avx2")) return Set::avx2;
#endif
  return Set::baseline;
}

Set set_in_use() {
  static const Set set = best_set();
  return set;
}

// Calls visit with the set of kernels for this processor.
template <typename Visit>
void with_kernels(Visit visit) {
#if HPCPIPE_X86
  if (set_in_use() == Set::avx512) return visit(Avx512{});
  if (set_in_use() == Set::avx2) return visit(Avx2{});
#endif
  visit(Baseline{});
}

template <bool adds>
void transfer(Element into_type, void* into, Element from_type, const void* from, std::size_t length) {
  with_kernels([&](auto kernels) {
    with_number(into_type, [&](auto into_number) {
      with_number(from_type, [&](auto from_number) {
        decltype(kernels)::template transfer<decltype(into_number), decltype(from_number), adds>(into, from, length);
      });
    });
  });
}

}  // namespace

void reduce(Element element, void* into, const void* const* sources, std::size_t num_sources, std::size_t length) {
  with_kernels([&](auto kernels) {
    with_number(element, [&](auto number) {
      decltype(kernels)::template reduce<decltype(number)>(into, sources, num_sources, length);
    });
  });
}

void convert(Element into_type, void* into, Element from_type, const void* from, std::size_t length) {
  if (into_type != from_type) {
    transfer<false>(into_type, into, from_type, from, length);
  } else if (length > 0) {
    std::memcpy(into, from, length * size_of(into_type));
  }
}

void accumulate(Element into_type, void* into, Element from_type, const void* from, std::size_t length) {
  transfer<true>(into_type, into, from_type, from, length);
}

double square_sum(Element element, const void* from, std::size_t length) {
  double sum = 0.0;
  with_kernels([&](auto kernels) {
    with_number(element, [&](auto number) {
      sum = decltype(kernels)::template square_sum<decltype(number)>(from, length);
    });
  });
  return sum;
}

const char* kernel_set() {
  switch (set_in_use()) {
    case Set::avx512:
      return "avx512";
    case Set::avx2:
      return "avx2";
    case Set::baseline:
      break;
  }
  return "baseline";
}

}  // namespace hpcpipe
