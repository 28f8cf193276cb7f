// Puts a program together message by message and finds out itself what each has to wait for.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "program.hpp"

namespace hpcpipe {

class ProgramBuilder {
 public:
  explicit ProgramBuilder(const Shape& shape) : shape_(shape) {}

  // The chunks of a stretch of whole blocks, in the order in which they travel.
  std::vector<Place> chunks(std::size_t first_block, std::size_t num_blocks) const;
  // A slot of scratch memory for messages of a peer, used again and again.
  std::size_t add_slot(int peer, std::size_t length);
  Place slot(std::size_t request, std::size_t length) const;

  // After the last receive so far that writes to any of it.
  void send(int peer, Place at);
  // Into its place for good.
  void receive(int peer, Place at);
  // Into a slot, once what used it before is done with; `reductions` are made when it has come.
  void receive_into_slot(std::size_t request, std::size_t length, const std::vector<Reduction>& reductions);

  Program take() { return std::move(program_); }

 private:
  struct Written {
    Place at;
    std::size_t end;  // receives worked off when it is written
  };
  std::size_t add_request(bool sends, int peer, Place at);

  Shape shape_;
  Program program_;
  std::vector<Written> written_;
  std::vector<std::size_t> slot_free_;  // [request]: receives worked off when nobody needs what is in the slot
  std::vector<std::size_t> filled_;     // slots with something that has not been reduced yet
};

}  // namespace hpcpipe
