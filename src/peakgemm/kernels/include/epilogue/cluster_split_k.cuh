// Blocks of a cluster (sm_90) that have one part each of a small tile's K: each gives the others the sums that they store,
// and adds up and stores a band of the tile's rows. No second kernel, no partial sums in memory (docs/notebook/05). How
// many they are, 2, 4, 8 or 16, the launch says; they are compiled once.
//
// What is given is counted by a barrier in the receiver's shared memory. A barrier of the cluster would wait until all that
// a thread has stored can be seen by the whole GPU (MEMBAR.ALL.GPU in SASS), 740 to 1430 cycles. Nobody ends before its
// sums are there, so that nothing is given to who has ended.
#include "include/ptx/bulk.cuh"
#include "include/ptx/mbarrier.cuh"

#if CLUSTER_SPLIT_K
__device__ __forceinline__ int cluster_blocks() {
  int blocks;
  asm("mov.u32 %0, %cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ int cluster_block() {
  int rank;
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  return rank;
}
#else
__device__ __forceinline__ constexpr int cluster_blocks() { return 1; }
__device__ __forceinline__ constexpr int cluster_block() { return 0; }
#endif

// Of the number of blocks, the logarithm.
__device__ __forceinline__ int cluster_log() { return CLUSTER_SPLIT_K ? 31 - __clz(cluster_blocks()) : 0; }

// A block's barriers are set up: after it all threads of the block, or the cluster, may use them. `given` counts what other
// blocks give, `bytes` in all. Mostly the kernel before still runs meanwhile.
__device__ __forceinline__ void all_are_there(unsigned given, int bytes) {
  if (!CLUSTER_SPLIT_K) {
    __syncthreads();
    return;
  }
  if (threadIdx.x == 0) {
    mbarrier_init(given, 1);
    bulk_expect(given, bytes);
  }
  asm volatile("fence.mbarrier_init.release.cluster;\n"
               "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// This address in the shared memory of block `rank`.
__device__ __forceinline__ unsigned address_in(unsigned address, int rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// To a word there, which the barrier counts.
__device__ __forceinline__ void give(unsigned to, float value, unsigned barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
               ::"r"(to), "f"(value), "r"(barrier) : "memory");
}
