// Fused copies between many tensors and one flat buffer, each of any type; knows neither MPI nor Python.
#pragma once

#include <cstddef>
#include <vector>

#include "elements.hpp"

namespace hpcpipe {

struct ConstPiece {
  Element element;
  const void* data;
  std::size_t length;
};

struct Piece {
  Element element;
  void* data;
  std::size_t length;
};

// flat[0:total] = the pieces one after the other, or += them; throws std::invalid_argument where they do not fit.
void pack(const std::vector<ConstPiece>& pieces, Piece flat, bool accumulate);

// The reverse: every piece gets its part of flat.
void unpack(ConstPiece flat, const std::vector<Piece>& pieces);

}  // namespace hpcpipe
