// A segment of K of half a tile by FFMAs, where the split would not do.
#include "include/mma/ieee_tile.cuh"
static_assert(IEEE_ROWS == 64, "a warpgroup's rows");

__device__ __forceinline__ void reroute(const float* A, const float* B, const Output& out, const Emulated& e,
                                        Place place, const Segment& s, float* staging, int group) {
  const Gemm& g = e.g;
  const int top = IEEE_ROWS * group, rows = TRANS_C ? g.M - place.m : out.rows;  // of a slot `out` has all
  if (top >= rows) return;
  const long long begin = static_cast<long long>(s.begin) * CHUNK, most = (s.end - s.begin) * CHUNK;
  ieee_tile(A + batch_offset(g, g.a_batch, place.batch) + (place.m + top) * e.a_row + begin * e.a_col,
            B + batch_offset(g, g.b_batch, place.batch) + place.n * e.b_row + begin * e.b_col, rows - top,
            min(g.N - place.n, BN), out, e, top, static_cast<int>(min(g.K - begin, most)), staging, group,
            threadIdx.x % 128);
}
