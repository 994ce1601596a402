// Wide thread tiles, 12 x 16: seven LDS for 192 FFMAs, where 8 x 16 has six for 128.
//
// Idea: beside 192 accumulators a thread has room for two k-steps of A and one of B, and for nothing else. So the copy
//   engine brings both operands (one thread asks), that thread deals the tiles as well, and no fragment is held over
//   the wait for a stage or over a tile's end. Two warps a scheduler hide what a stage's first loads take.
// PTXAS(13.0): fragments held there are spilled, or give accumulators another parity (tile_store_pairs.cuh). It
//   allocates all roles of the kernel together: where one of them lacks a register, the main loop loses 21 % of its
//   speed. So copying threads stay below 24 registers and a tile's end below 240, by the thread's number read anew
//   (opaque) instead of what follows from it held. lab/compilers.py shows the main loop of each release.
// Both operands are read with K outermost and rows that begin at 16 bytes: any other is repacked by three warps that
//   copy nothing else, a chunk of K before it is asked for (include/copy/repack.cuh). By passes of their own, of both operands,
//   4096 NT took 2.6 % longer, 8192 NT 1.1 %.
// On sm_90a the register file is dealt anew: 24 registers for a copying thread, 240 for a computing one, which is all.

#include "include/scheduler/handed.cuh"
#include "include/copy/repack.cuh"
#include "include/copy/ring.cuh"
#include "include/epilogue/tile_store_pairs.cuh"
#include "include/mma/fragment.cuh"
#include "include/ptx/bulk.cuh"
#include "include/ptx/dependents.cuh"

constexpr int STAGE = BK * (BM + BN);  // floats

// What the computing warps do next: `stages` of one tile of C, whose sums go to `slot` of the partial sums, or to C
// (-1). No tile: the end. They may be STAGES tiles behind the thread that deals.
struct TileJob {
  int tile, stages, slot;
};
constexpr int JOB_SLOTS = 2 * STAGES;

struct Wide {
  Gemm g;
  Repack repack;
};

extern "C" __global__ void __launch_bounds__(THREADS + PRODUCERS, 1)
ffma_wide(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
          float* __restrict__ workspace, const __grid_constant__ Wide w, const __grid_constant__ TensorMap map_a,
          const __grid_constant__ TensorMap map_b) {
  extern __shared__ __align__(128) float shared[];
  const Gemm& g = w.g;
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  __shared__ TileJob jobs[JOB_SLOTS];
  __shared__ int begins[JOB_SLOTS];  // HANDED: its first k-step
  Ring<4 * STAGE> ring(barriers);
  ring.init(1, THREADS / 32);
  if (threadIdx.x < STAGES) fence_for_copies();
  __syncthreads();
  previous_kernel_has_ended();

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp >= THREADS / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (warp > THREADS / 32) {
      repack_units(A, B, workspace, g, w.repack, shared_address(shared + STAGES * STAGE + THREADS / 32 * PAIRED) +
                                                    8 * UNIT_WORDS * (warp - THREADS / 32 - 1));
    } else if (threadIdx.x == THREADS) {
      const unsigned stages = shared_address(shared);
      const int steps = (g.K + BK - 1) / BK, items = items_of(g);
      int job = 0, there = 1;  // chunks of K that are
#pragma unroll 1
      for (int item = blockIdx.x; item < items; item += gridDim.x)
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
          Segment s;
          if (HANDED ? !handed_segment(g, steps, item, half, s) : !segment_of(g, steps, item, half, s)) continue;
          const Place place = place_of(g, s.tile);
#pragma unroll 1
          for (int k = s.begin; k < s.end; ++k) {
            ring.wait_empty();
            if (k == s.begin) {
              jobs[job] = {s.tile, s.end - s.begin, s.slot};
              if (HANDED) begins[job] = s.begin;
              if (++job == JOB_SLOTS) job = 0;
            }
            if (w.repack.units)
              for (; there <= k * BK / CHUNK; ++there)
                wait_for_units(reinterpret_cast<const unsigned*>(workspace) + 1 + there, w.repack.units);
            bulk_expect(ring.full(), 4 * STAGE);
            tensor_load(stages + ring.at(), map_a, k * BK, place.m, ring.full());
            tensor_load(stages + ring.at() + 4 * BK * BM, map_b, k * BK, place.n, ring.full());
            ring.step();
          }
        }
      ring.wait_empty();
      jobs[job] = {-1, 0, 0};
      mbarrier_arrive(ring.full());
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
  const WarpTile mine = warp_tile(threadIdx.x);
  const unsigned first_a = shared_address(shared + mine.m), first_b = shared_address(shared + BK * BM + mine.n);
  unsigned* const flags = reinterpret_cast<unsigned*>(workspace) + (HANDED ? w.repack.sums - w.repack.flags : 0);
  float a[2][TM], b[TN];  // what the next k-step wants of A comes early, B's quads behind their last use
  auto load = [&](float* to, unsigned from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(from) : "memory");
  };
  auto load_a = [&](int k, int i) { load(a[k % 2] + i, first_a + ring.at() + 4 * (k * BM + quad(i, 8))); };
  auto load_b = [&](int k, int j) { load(b + j, first_b + ring.at() + 4 * (k * BN + quad(j, 4))); };

  for (int job = 0;; job = job + 1 == JOB_SLOTS ? 0 : job + 1) {
    mbarrier_poll(ring.full(), ring.parity);
    const volatile TileJob& now = jobs[job];
    int left = now.stages;
    if (now.tile < 0) return;
    float acc[TM][TN] = {};
    if (HANDED && static_cast<const volatile int*>(begins)[job] > 0)
      load_carry(acc, flags, workspace + w.repack.sums, blockIdx.x - 1, threadIdx.x);
#pragma unroll 1
    for (; left > 0; --left) {
      mbarrier_poll(ring.full(), ring.parity);
#pragma unroll
      for (int i = 0; i < TM; i += 4) load_a(0, i);
#pragma unroll
      for (int j = 0; j < TN; j += 4) load_b(0, j);
#pragma unroll
      for (int k = 0; k < BK; ++k) {
#pragma unroll
        for (int t = 0; t < TM * TN; ++t) {  // columns, down one and up the next
          const int j = t / TM, i = j % 2 ? TM - 1 - t % TM : t % TM;
          acc[i][j] = fmaf(a[k % 2][i], b[j], acc[i][j]);
          if (k + 1 < BK && j == 1 && t % 4 == 0) load_a(k + 1, t % TM);
          if (k + 1 < BK && t % (4 * TM) == 4 * TM - 1) load_b(k + 1, j - 3);
        }
      }
      __syncwarp();
      // PTXAS(13.0): it leaves the arrival right behind the issue of the last loads, and the copy engine once overwrote
      // what a slower warp had yet to read; `peakgemm sass check --arrivals`. So the arrival waits for these sums,
      // which each quad of A and of B is in and which stand in the address as 0: not for the quads, or the FFMAs would,
      // too.
      unsigned read = 0;
#pragma unroll
      for (int j = 0; j < TN; j += 4) read |= __float_as_uint(acc[j % TM][j]);
      if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty() + (read & w.repack.none));
      ring.step();
    }
    store_tile_pairs(acc, C0, C, workspace + w.repack.sums, g, now.tile, now.slot, opaque(int(threadIdx.x)),
                     shared + STAGES * STAGE);
    if (HANDED && now.slot >= 0) store_carry(flags, now.slot);
  }
}
