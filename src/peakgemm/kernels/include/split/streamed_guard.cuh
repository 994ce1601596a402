// The guard of a product whose A is split in registers: what lost_bits.cuh looks up in two panels is looked up here in A
// as it lies in a stage, and in the planes of B beside it.
#include "include/ptx/wgmma_registers.cuh"
#include "include/split/rows_in_registers.cuh"
#include "include/ptx/bulk.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/opaque.cuh"
#include "include/ptx/store_shared.cuh"
#if SPLIT_B  // each header is joined once: what these two include stands before them
#include "include/split/right_split.cuh"
#else
#include "include/copy/right_panels.cuh"
#endif

// The magnitude of B's first plane, scaled.
__device__ __forceinline__ float magnitude_b(const char* planes, int column, int k) {
  const char* const at = planes + k / 32 * B_HALF + column * 64 + ((k / PIECE % 4 ^ (column / 2 & 3)) << 4);
  return of_half(reinterpret_cast<const unsigned short*>(at)[k % PIECE] & 0x7fffu);
}

template <class Layout>
__device__ __forceinline__ float magnitude_a(const char* stage, const Layout& lines, int row, int k) {
  return fabsf(*reinterpret_cast<const float*>(stage + lines.at(row, k)));
}

// Whether row `row` of the tile and column `column` meet with a large enough sum, if the row is not zero; then there is
// one less of `most` to be asked. All lanes of a warp call.
template <class Layout>
__device__ __forceinline__ bool meeting_holds(const char* stage, const char* planes, const Layout& lines, int row,
                                              int column, int& most) {
  const int lane = threadIdx.x % 32;
  float top = 0.f, sum = 0.f;
#pragma unroll
  for (int k = 0; k < CHUNK; k += 32) top = fmaxf(top, magnitude_a(stage, lines, row, k + lane));
#pragma unroll
  for (int other = 1; other < 32; other *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
  const float up = power_of_two(shift_of(__float_as_uint(top)));
  most -= top != 0.f;
#pragma unroll
  for (int k = 0; k < CHUNK; k += 32)
    sum = fmaf(magnitude_a(stage, lines, row, k + lane) * up, magnitude_b(planes, column, k + lane), sum);
#pragma unroll
  for (int other = 1; other < 32; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
  return top == 0.f || (most >= 0 && sum >= LOSSY * 0x1p23f);
}

// Whether this warp's sums hold of which a row or a column has lost bits. Where a sum of a chunk, or of its last part, with
// corrections or without, is SURELY, sum |a||b| is, too. Only for others, one in 8,000, `meeting_holds` is asked.
//
// `high`: a strip's sums; `there`: its columns to the edge; `rows`: RowsInRegisters::marks.
constexpr unsigned ASKED = 16;  // beside those
constexpr float SURELY = LOSSY * 0x1p27f;
constexpr int MOST_WEAK = 32;  // sums of a strip to be asked for; with more the half tile is not worth it
template <class Layout>
__device__ __forceinline__ bool lossy_sums_hold(const float (&high)[STRIP_SUMS], int strip, const char* stage,
                                                const char* planes, const Layout& lines, const char* tail,
                                                int first_column, int there, unsigned rows) {
  const float* const scales = reinterpret_cast<const float*>(tail) + strip * STRIP;
  const int lane = threadIdx.x % 32, beside = lane % 4 * 2;
  unsigned weak[2] = {0, 0}, across = 0;  // of this lane's two rows, a bit for each of its columns
#pragma unroll
  for (int i = 0; i < STRIP_SUMS / 2; ++i) {
    const bool zeros = scales[i / 2 * 8 + i % 2 + beside] == 0.f;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      weak[r] |= static_cast<unsigned>(!zeros && fabsf(high[i / 2 * 4 + 2 * r + i % 2]) < SURELY) << i;
  }
#pragma unroll
  for (int word = 0; word < STRIP / 32; ++word) {
    const unsigned bits = RightSeen::lossy_columns(tail, first_column, strip * (STRIP / 32) + word) >> beside;
    across |= (bits & 3 | bits >> 6 & 12 | bits >> 12 & 48 | bits >> 18 & 192) << 8 * word;
  }
  const int left = there - beside, inside = left <= 0 ? 0 : left / 8 * 2 + min(left % 8, 2);
  const unsigned present = inside < 32 ? (1u << inside) - 1 : ~0u;
  int most = MOST_WEAK;
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    unsigned mine = (r ? weak[1] : weak[0]) & present & (rows >> r & 1 ? ~0u : rows >> r + 2 & 1 ? across : 0);
#pragma unroll 1
    for (unsigned lanes; (lanes = __ballot_sync(~0u, mine)) != 0;) {
      const int source = __ffs(lanes) - 1, i = __shfl_sync(~0u, __ffs(mine) - 1, source);
      const int row = threadIdx.x / 32 * 16 + source / 4 + 8 * r, column = i / 2 * 8 + i % 2 + source % 4 * 2;
      // PTXAS(13.0): by votes, for it to see that a warp stays together: it would take the uniform registers from the
      // loop around this, and spill; return !meeting_holds(...), lab/compilers.py.
      if (!__all_sync(~0u, meeting_holds(stage, planes, lines, row, strip * STRIP + column, most))) return false;
      if (lane == source) mine &= mine - 1;
    }
  }
  return true;
}

// Whether a row of this warp has fewer elements that are not zero, along all of K, than a split is good for. `count`,
// of this lane's two rows, is what the quad has seen of them in all of K or, else, in a part of it; rows of which it has
// seen few are then counted in memory, from `rows` on.
__device__ __forceinline__ bool sparse_rows(const int (&count)[2], const float* rows, const Emulated& e,
                                            bool all_of_k) {
  const int lane = threadIdx.x % 32, enough = min(FEWEST, e.g.K);
  bool few = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    unsigned pending = __ballot_sync(~0u, lane % 4 == 0 && count[r] > 0 && count[r] < enough);
    if (all_of_k) {
      few |= pending != 0;
      continue;
    }
#pragma unroll 1
    for (; pending; pending &= pending - 1) {
      const float* const from = rows + ((__ffs(pending) - 1) / 4 + 8 * r) * e.a_row;
      few |= nonzeros(from, e.a_col, e.g.K, enough) < enough;
    }
  }
  return few;
}
