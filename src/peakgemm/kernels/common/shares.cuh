// Which partial sums belong to one of the tiles whose K several blocks have shared: those of ranges `first` to `last`.
// The first range may begin in the tile before; then its second half is what belongs here, at `first_slot`.
struct Shares {
  int first, last;
  long long first_slot;
  bool whole;  // one block had all of the tile, and stored it

  __device__ __forceinline__ Shares(const Gemm& g, int steps, int tile) {
    const long long begin = static_cast<long long>(tile) * steps, total = static_cast<long long>(g.shared) * steps;
    // Range p holds k-step x where p total / parts <= x: the largest such p.
    first = static_cast<int>(wide_quotient((begin + 1) * g.parts - 1, total));
    last = static_cast<int>(wide_quotient((begin + steps) * g.parts - 1, total));
    whole = first == last && part_begin(g, steps, first) == begin && part_begin(g, steps, first + 1) == begin + steps;
    first_slot = part_begin(g, steps, first) < begin ? first + g.parts : first;
  }
};
