// The transpose of a matrix through a 32x32 tile, without padding: a warp writes the tile by rows and reads it by columns.
// The columns' words lie 32 apart, all in one bank: 32 wavefronts a read. A tile[32][33] ends it.
extern "C" __global__ void transpose(const float* __restrict__ in, float* __restrict__ out, int n) {
  __shared__ float tile[32][32];
  const int x = blockIdx.x * 32, y = blockIdx.y * 32;
  for (int row = threadIdx.y; row < 32; row += blockDim.y) tile[row][threadIdx.x] = in[(y + row) * n + x + threadIdx.x];
  __syncthreads();
  for (int row = threadIdx.y; row < 32; row += blockDim.y) out[(x + row) * n + y + threadIdx.x] = tile[threadIdx.x][row];
}
