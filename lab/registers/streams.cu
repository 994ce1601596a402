// A clock for streams of instructions: a loop of 512 FFMAs, whose words streams.py overwrites.
//
// Only the loop around them is the compiler's. All 96 floats are alive throughout it, so a stream may use their registers
// as it likes: no word of the loop's own does. There is no FFMA outside the loop, by which it is found.
// Each warp notes when it began and ended; what it computes means nothing.

constexpr int SUMS = 64, FACTORS = 16, ROUNDS = 8;

extern "C" __global__ void __launch_bounds__(256, 1) clocked_stream(unsigned* sink, const float* x, int turns,
                                                                    long long* clocks) {
  float c[SUMS], a[FACTORS], b[FACTORS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) c[i] = x[i];
#pragma unroll
  for (int i = 0; i < FACTORS; ++i) a[i] = x[SUMS + i], b[i] = x[SUMS + FACTORS + i];

  __syncthreads();
  const long long began = clock64();
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
      for (int i = 0; i < SUMS; ++i) c[i] = fmaf(a[(i / 8 + r) % FACTORS], b[(i % 8 + r) % FACTORS], c[i]);
  }
  const long long ended = clock64();

  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < SUMS; ++i) bits ^= __float_as_uint(c[i]);
#pragma unroll
  for (int i = 0; i < FACTORS; ++i) bits ^= __float_as_uint(a[i]) ^ __float_as_uint(b[i]);
  if (bits == 0x12345678u) sink[threadIdx.x] = bits;
  if (threadIdx.x % 32 == 0) {
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    clocks[2 * warp] = began;
    clocks[2 * warp + 1] = ended;
  }
}
