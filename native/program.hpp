// What one rank sends, receives and adds in a collective operation, as data: algorithms are lists that other code performs.
// It must know neither MPI nor time, so that all ranks of any number can be played through in one process.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace hpcpipe {

enum class Operation { reduce_scatter, all_gather };
enum class Algorithm { ring, recursive, direct };

const char* name_of(Algorithm algorithm);
Algorithm algorithm_from_name(const std::string& name);  // throws std::invalid_argument that lists the names

// A buffer of one block for each rank, in the order of the ranks, as one of them sees it.
struct Shape {
  int rank;
  int ranks;
  std::size_t block;  // elements
  std::size_t chunk;  // elements that travel in one message at most; at least 1
};

// A stretch of the buffer or of the scratch memory, in elements.
struct Place {
  bool scratch;
  std::size_t begin;
  std::size_t length;
};

// A persistent request: started each time a message names it.
struct Request {
  bool sends;
  int peer;
  Place at;
};

// `after`: this many receives must have been worked off before the message may be started.
struct Send {
  std::size_t request;
  std::size_t after;
};

// Worked off in the order of the list: the message must have come, then the reductions up to `reductions_end` are made.
struct Receive {
  std::size_t request;
  std::size_t length;  // due; the request has room for it
  std::size_t after;
  std::size_t reductions_end;
};

// into = (sources[0] + sources[1]) + ...
struct Reduction {
  Place into;
  std::vector<Place> sources;
};

struct Program {
  std::size_t scratch = 0;  // elements
  std::vector<Request> requests;
  std::vector<Receive> receives;
  std::vector<Send> sends;
  std::vector<Reduction> reductions;
};

// The programs that perform an operation one after the other, each begun when this rank has ended the one before.
//
// Sums of ring and direct are made in the order of the ring: block b is ((x[b+1] + x[b+2]) + ...) + x[b], ranks counted
// modulo their number. Recursive halving sums in a tree. Both are the same on every run, whatever the chunk.
std::vector<Program> make_programs(Operation operation, Algorithm algorithm, const Shape& shape);

}  // namespace hpcpipe
