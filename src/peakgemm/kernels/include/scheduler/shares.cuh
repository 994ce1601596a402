// Which partial sums belong to one of the tiles whose K several blocks have shared: those of ranges `first` to `last`.
// The first range may begin in the tile before; then its second half is what belongs here, at `first_slot`.
#include "include/scheduler/gemm.cuh"

struct Shares {
  int first, last;
  long long first_slot;
  bool whole;  // one block had all of the tile, and stored it

  __device__ __forceinline__ Shares(const Gemm& g, int steps, int tile) {
    const long long begin = static_cast<long long>(tile) * steps;
    // Range p begins at p total / parts, rounded down: the last one that begins at `begin` or before, by its rounded
    // beginning, is the last by the true one or the next; and the last that begins before the tile's end.
    first = over(tile * g.parts, g.by_shared);
    first += first + 1 < g.parts && part_begin(g, first + 1) <= begin;
    last = over((tile + 1) * g.parts - 1, g.by_shared);
    whole = first == last && part_begin(g, first) == begin && part_begin(g, first + 1) == begin + steps;
    first_slot = part_begin(g, first) < begin ? first + g.parts : first;
  }
};
