// See fusion.hpp.
#include "fusion.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace hpcpipe {

namespace {

template <typename P>
void check_fits(const std::vector<P>& pieces, std::size_t flat_length) {
  std::size_t total = 0;
  for (const P& piece : pieces) total += piece.length;
  if (total > flat_length) {
    throw std::invalid_argument(std::to_string(pieces.size()) + " tensors with " + std::to_string(total) +
                                " elements together do not fit a flat buffer of " + std::to_string(flat_length));
  }
}

void add(float* __restrict into, const float* __restrict from, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) into[i] += from[i];
}

void copy(float* into, const float* from, std::size_t length) {
  if (length > 0) std::memcpy(into, from, length * sizeof(float));
}

}  // namespace

void pack(const std::vector<ConstPiece>& pieces, Piece flat, bool accumulate) {
  check_fits(pieces, flat.length);
  float* into = flat.data;
  for (const ConstPiece& piece : pieces) {
    if (accumulate) {
      add(into, piece.data, piece.length);
    } else {
      copy(into, piece.data, piece.length);
    }
    into += piece.length;
  }
}

void unpack(ConstPiece flat, const std::vector<Piece>& pieces) {
  check_fits(pieces, flat.length);
  const float* from = flat.data;
  for (const Piece& piece : pieces) {
    copy(piece.data, from, piece.length);
    from += piece.length;
  }
}

}  // namespace hpcpipe
