// Recursive halving and doubling, also where the ranks are no power of two.
#pragma once

#include <vector>

#include "program.hpp"

namespace hpcpipe {

std::vector<Program> recursive_halving(const Shape& shape);  // a reduce-scatter
Program recursive_doubling(const Shape& shape);              // an all-gather

}  // namespace hpcpipe
