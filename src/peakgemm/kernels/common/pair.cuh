// Two blocks that compute one tile of C (a cluster, sm_90): each takes half of its k-steps, then each adds up and stores
// half of the rows of every thread tile, which it reads in the other's shared memory. No partial sum goes through L2,
// and no second kernel adds up: 512 x 512 x 1024 takes 17.1 us without, 17.5 with a second kernel, 16.7 so.
//
// With four or eight blocks a cluster SMs are left idle, as their groups on an H100 are no multiples of four. And giving
// the other its rows by stores, with mbarriers instead of two barriers of the cluster, takes 1 to 2 us of 20 longer, though
// blocks could then go on to another tile.

#ifndef PARTS
#define PARTS 0
#endif

// What block `item` computes: where two share a tile its half of the k-steps, be it none. To be told which part of a tile's
// K costs a block that has all of it 1 % (docs/notebook/05), hence PARTS.
__device__ __forceinline__ bool work_of(const Gemm& g, int steps, int item, int half, Segment& s) {
  if constexpr (!ONCE || PARTS) return segment_of(g, steps, item, half, s);
  if constexpr (GATHERED) {
    const int log = cluster_log(), rank = cluster_block(), up = cluster_blocks() - 1;
    s = {item >> log, (steps * rank + up) >> log, (steps * (rank + 1) + up) >> log, -1};
  } else if constexpr (CLUSTER == 1) {
    s = {item, 0, steps, -1};
  } else {
    const int middle = (steps + 1) / 2;
    s = {item / 2, item % 2 ? middle : 0, item % 2 ? steps : middle, -1};
  }
  return half == 0;
}

__device__ __forceinline__ void pair_meets() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// The word at this address in the shared memory of block `rank`.
__device__ __forceinline__ float load_from(unsigned address, int rank) {
  float value;
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %1, %2;\n"
               "ld.shared::cluster.f32 %0, [there];}" : "=f"(value) : "r"(address), "r"(rank) : "memory");
  return value;
}

// `sums`: this thread's place in a tile of sums, which lie as partial sums do. Nothing else may be there any more.
__device__ __forceinline__ void store_pair(const float (&acc)[TM][TN], float* sums, const float* C0, float* C,
                                           const Gemm& g, int tile, int thread, int slice, float* staging) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
    if (slice == owner_of(i)) {
#pragma unroll
      for (int j = 0; j < TN; ++j) sums[(i * TN + j) * THREADS] = acc[i][j];
    }
  pair_meets();
  constexpr int MINE = TM / 2, EACH = MINE % SLICES ? MINE : MINE / SLICES;  // rows of a block, of a slice of it
  constexpr int WORDS = TN < 8 ? TN : 8;                                     // whose loads are under way at once
  const unsigned from = shared_address(sums);
  auto stage = [&](int i, unsigned to) {
    __syncwarp();  // the row before has been read
#pragma unroll
    for (int begin = 0; begin < TN; begin += WORDS) {
      float first[WORDS], second[WORDS];
#pragma unroll
      for (int j = 0; j < WORDS; ++j) {
        const unsigned at = from + 4 * (i * TN + begin + j) * THREADS;
        first[j] = load_from(at, 0), second[j] = load_from(at, 1);
      }
#pragma unroll
      for (int j = 0; j < WORDS; ++j) store_shared(to + 4 * (begin + j), first[j] + second[j]);
    }
  };
  if (slice * EACH < MINE)
    store_rows(cluster_rank() * MINE + slice * EACH, EACH, stage, C0, C, g, tile, thread, slice, staging);
  pair_meets();  // the other has read
}
