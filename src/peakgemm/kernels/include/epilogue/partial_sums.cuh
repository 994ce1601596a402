// Adds up partial sums in their order, `count` more to `sums`: load(i) has those of part i, of WORDS results.
//
// Several parts are asked for at once, the last ones too. As a loop unrolled by eight, what eight did not divide was asked
// for one after the other, each a way to L2 and back. Of quads six, or their tests take more predicates than there are.
template <int WORDS>
struct alignas(4 * WORDS) Sums {
  float of[WORDS];
};

template <int WORDS, typename Load>
__device__ __forceinline__ void add_parts(Sums<WORDS>& sums, int count, Load load) {
  constexpr int AT_ONCE = WORDS == 1 ? 8 : 6;
#pragma unroll 1
  for (int done = 0; done < count; done += AT_ONCE) {
    Sums<WORDS> part[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (done + i < count) part[i] = load(done + i);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (done + i < count)
#pragma unroll
        for (int w = 0; w < WORDS; ++w) sums.of[w] += part[i].of[w];
  }
}
