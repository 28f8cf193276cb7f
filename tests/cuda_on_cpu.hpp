// What a C++ compiler needs to make the numbers of collective/kernels.cu on a CPU: threads one after the other.
#pragma once

#include <cstdint>

#include "../native/numbers.hpp"

#define __device__
#define __global__

struct Index {
  unsigned x;
};

static Index blockIdx, threadIdx, blockDim, gridDim;

static float __uint_as_float(unsigned bits) { return hpcpipe::as_float(bits); }
static unsigned __float_as_uint(float value) { return hpcpipe::as_bits(value); }
static float hpcpipe_half_to_float(std::uint16_t half) { return hpcpipe::Float16::load(half); }
static std::uint16_t hpcpipe_float_to_half(float value) { return hpcpipe::Float16::store(value); }

template <typename Kernel, typename... Arguments>
static void launch(Kernel kernel, unsigned blocks, unsigned threads, Arguments... arguments) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel(arguments...);
  }
}
