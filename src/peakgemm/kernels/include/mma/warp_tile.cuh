// Where the fragments of a thread lie when a warp computes one compact tile of
// 8 TM x 4 TN: eight lanes along the rows, four along the columns.
//
// A's float4 is shared by each pair of lanes (n, n^1) and B's by each pair (n, n^2), so an LDS.128
// returns in two wavefronts instead of four, and the eight (four) different float4 are
// neighbours, so it never conflicts. Of two rows a thread, A's are float2.
constexpr int LANE_M = TM < 4 ? TM : 4;  // rows that a lane loads at once
constexpr int WARP_M = 8 * TM;
constexpr int WARP_N = 4 * TN;

struct WarpTile {
  int m, n;  // first row and column of the thread's first float4, within the block
};

__device__ __forceinline__ WarpTile warp_tile(int thread) {
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int lane_m = lane / 2 % 8;
  const int lane_n = lane % 2 + lane / 16 * 2;
  return {warp / (BN / WARP_N) * WARP_M + lane_m * LANE_M, warp % (BN / WARP_N) * WARP_N + lane_n * 4};
}

__device__ __forceinline__ WarpTile warp_tile() { return warp_tile(threadIdx.x); }
