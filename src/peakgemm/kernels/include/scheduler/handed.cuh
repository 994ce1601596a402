// Accumulators handed on: a tile whose K two blocks share keeps one chain of FMAs an element, k = 0 ... K - 1.
//
// The block that has the first part of a tile's K, its head, leaves its accumulators as they are, FP32 and exact; the block
// that has the other part, the tail, begins with them instead of zeros. Of stream-K's partial sums nothing is added up.
// Every block, in a single wave, does its head first, then its whole tiles, and a tail last: what a tail begins with was
// done a tile's time before. Ranges of shared k-steps are a tile long at least, so that each tile is cut once at most
// (kernels/schedule.py).
//
// A block waits only for one whose index is lower by one, and that one only after it has handed on. Blocks are
// launched in the order of their indices, so nobody waits for a block that has no SM, however few run at once.
#include "include/mma/fragment.cuh"
#include "include/scheduler/gemm.cuh"

// Work items of a launch: heads, then whole tiles, then ranges without their heads. A block has the same range in both.
__device__ __forceinline__ int items_of(const Gemm& g) { return g.whole + (HANDED ? 2 : 1) * g.parts; }

// Where a tail of work item `item` finds what it begins with: the slot of the block before. PTXAS(13.0): by blockIdx.x
// it issues eight loads of the main loop in a row beside 8 x 16 results a thread, 2 % at 4096; lab/compilers.py.
__device__ __forceinline__ int before(const Gemm& g, int item) { return item - g.parts - g.whole - 1; }

// As segment_of. One that does not begin at k-step 0 is a tail: what it begins with is in the slot of the block before.
__device__ __forceinline__ bool handed_segment(const Gemm& g, int steps, int item, int half, Segment& s) {
  const bool head = item < g.parts;
  if (!head && (item -= g.parts) < g.whole) {
    s = {item, 0, steps, -1};
    return half == 0;
  }
  const int part = head ? item : item - g.whole;
  const int first = over(part * g.shared, g.by_parts), last = over((part + 1) * g.shared, g.by_parts);
  if (head) {  // of the tile in which the range ends
    s = {g.whole + last, 0, static_cast<int>(part_begin(g, part + 1) - static_cast<long long>(last) * steps), part};
    return half == 0 && s.end > 0;
  }
  const int cut = static_cast<int>(part_begin(g, part) - static_cast<long long>(first) * steps);
  if (half == 0) {
    s = {g.whole + first + (cut > 0), 0, steps, -1};
    return first + (cut > 0) < last;
  }
  s = {g.whole + first + (cut == 0), cut, steps, -1};  // the tail; a second tile where the range is just two
  return cut > 0 || first + 1 < last;
}

// Of a slot: warps that have handed on. Zero before the launch (ffma/first_chunk.cu).
__device__ __forceinline__ int words_of_flags(const Gemm& g) { return (g.parts + 3) / 4 * 4; }

// This warp's accumulators are in `slot`, as store_tile left them.
__device__ __forceinline__ void store_carry(unsigned* flags, int slot) {
  __threadfence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flags + slot) : "memory");
}

// Begin with what all warps of a block have left in a slot. Past L1, which other SMs do not write.
__device__ __forceinline__ void load_carry(float (&acc)[TM][TN], const unsigned* flags, const float* sums, int slot,
                                          int thread) {
  unsigned there;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flags + slot) : "memory");
  } while (there != THREADS / 32);
  const float* const from = sums + static_cast<long long>(slot) * BM * BN + thread;
  each_result([&](int i, int j) {
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];"
                 : "=f"(acc[i][j]) : "l"(from + (i * TN + j) * THREADS) : "memory");
  });
}
