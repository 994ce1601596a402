// Blocks of a cluster (sm_90): CLUSTER of them share what they copy.
#include "include/ptx/mbarrier.cuh"

__device__ __forceinline__ int cluster_rank() { return CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER; }

// All threads of all blocks; barriers that were set up before it are there for everybody after it.
__device__ __forceinline__ void cluster_meets() {
  if (CLUSTER == 1) {
    __syncthreads();
  } else {
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  }
}

// Arrive at the barrier that block `rank` of the cluster has at this address.
__device__ __forceinline__ void cluster_arrive(unsigned barrier, int rank) {
  if (CLUSTER == 1) {
    mbarrier_arrive(barrier);
  } else {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier), "r"(rank) : "memory");
  }
}

// A bulk copy to the same place in every block of the cluster, each one's barrier counting.
__device__ __forceinline__ void bulk_multicast(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1], %2, [%3], %4;"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>((1 << CLUSTER) - 1))
               : "memory");
}
