// Sums and conversions of arrays, vectorised for the processor at hand; knows neither MPI nor Python.
// Every element is computed by itself, so the bits depend on neither the vector length nor the cut into chunks.
#pragma once

#include <cstddef>

#include "elements.hpp"

namespace hpcpipe {

// into[i] = (sources[0][i] + sources[1][i]) + sources[2][i] ...: 16-bit types are summed in fp32 and rounded once, to
// nearest even; `into` may be one of the two or more sources.
void reduce(Element element, void* into, const void* const* sources, std::size_t num_sources, std::size_t length);

// into[i] = from[i], or into[i] + from[i], in the type of `into`.
void convert(Element into_type, void* into, Element from_type, const void* from, std::size_t length);
void accumulate(Element into_type, void* into, Element from_type, const void* from, std::size_t length);

// The sum of the squares, in double precision and one order, so with the same bits wherever the array lies. A square of
// any type but float64 is exact in it, so the bits do not depend on the processor either.
double square_sum(Element element, const void* from, std::size_t length);

const char* kernel_set();  // "avx512", "avx2" or "baseline": what the functions above use here

}  // namespace hpcpipe
