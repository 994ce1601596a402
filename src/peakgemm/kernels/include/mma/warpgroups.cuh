// Two warpgroups that multiply a tile's products on the tensor cores, 64 rows by BN columns each.
#include "include/split/split_panel.cuh"

constexpr int GROUPS = 2;                        // warpgroups that multiply,
constexpr int COMPUTE = 128 * GROUPS;            // their threads
constexpr bool ALTERNATE = BM == 64;             // the warpgroups have the same rows, and every other chunk each
constexpr bool TWICE = ACCUMULATIONS == 2;       // products of first planes are added up twice a chunk,
constexpr bool FOUR_TIMES = ACCUMULATIONS == 4;  // or four times, each wgmma by itself
static_assert((BM == ROWS || ALTERNATE) && BN <= ROWS, "64 or 128 rows, and one panel of B");

// A block's items of work, each of which touches two tiles at most: twice the item, and which of the two.
__device__ __forceinline__ int first_work() { return blockIdx.x / CLUSTER * 2; }
__device__ __forceinline__ int next_work(int work) { return work + (work % 2 ? gridDim.x / CLUSTER * 2 - 1 : 1); }

// The warpgroups take turns at the tensor cores. Without, the hardware deals instructions evenly, both end at the
// same time and the tensor cores wait while both add up.
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(COMPUTE) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(3 - group), "n"(COMPUTE) : "memory");
}
