// See fusion.hpp.
#include "fusion.hpp"

#include <stdexcept>
#include <string>

#include "kernels.hpp"

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

}  // namespace

void pack(const std::vector<ConstPiece>& pieces, Piece flat, bool accumulates) {
  check_fits(pieces, flat.length);
  auto* into = static_cast<unsigned char*>(flat.data);
  for (const ConstPiece& piece : pieces) {
    (accumulates ? accumulate : convert)(flat.element, into, piece.element, piece.data, piece.length);
    into += piece.length * size_of(flat.element);
  }
}

void unpack(ConstPiece flat, const std::vector<Piece>& pieces) {
  check_fits(pieces, flat.length);
  const auto* from = static_cast<const unsigned char*>(flat.data);
  for (const Piece& piece : pieces) {
    convert(piece.element, piece.data, flat.element, from, piece.length);
    from += piece.length * size_of(flat.element);
  }
}

}  // namespace hpcpipe
