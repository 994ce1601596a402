// wgmma (sm_90a): where its operands lie in shared memory, and what orders it.
constexpr int ACCUMULATORS = BN / 2;  // sums of a thread of a warpgroup, which has 64 rows

// A plane of 64-byte rows in shared memory, swizzled in groups of eight rows (512 bytes).
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address) {
  return static_cast<unsigned long long>((address & 0x3ffffu) >> 4) | 1ull << 16 | (512ull >> 4) << 32 | 2ull << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most N of the groups committed are still under way.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
