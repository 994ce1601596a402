// 64 x BN of a tile by one of two warpgroups: products of a chunk's planes on the tensor cores, sums in FP32.
constexpr int GROUPS = 2;                        // warpgroups that multiply,
constexpr int COMPUTE = 128 * GROUPS;            // their threads
constexpr bool ALTERNATE = BM == 64;             // the warpgroups have the same rows, and every other chunk each
constexpr int A_PLANE = BM * 64;                 // bytes of the tile's rows, of half a chunk
constexpr bool TWICE = ACCUMULATIONS == 2;       // products of first planes are added up twice a chunk,
constexpr bool FOUR_TIMES = ACCUMULATIONS == 4;  // or four times, each wgmma by itself
static_assert((BM == ROWS || ALTERNATE) && BN <= ROWS, "64 or 128 rows, and one panel of B");
static_assert(IEEE_ROWS == 64, "a warpgroup's rows");

// A block's items of work, each of which touches two tiles at most: twice the item, and which of the two.
__device__ __forceinline__ int first_work() { return blockIdx.x / CLUSTER * 2; }
__device__ __forceinline__ int next_work(int work) { return work + (work % 2 ? gridDim.x / CLUSTER * 2 - 1 : 1); }

// Planes p of A and q of B, the k-th 32 bytes of their rows (descriptors count 16 bytes).
template <bool ADD>
__device__ __forceinline__ void multiply(float (&d)[ACCUMULATORS], unsigned long long a, int p, unsigned long long b,
                                         int q, int k) {
  wgmma<ADD>(d, a + (p * A_PLANE >> 4) + 2 * k, b + (q * PLANE >> 4) + 2 * k);
}

// A stage's products of first planes, added to `d` or, without ADD, by themselves.
template <bool ADD>
__device__ __forceinline__ void multiply_high(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b) {
  multiply<ADD>(d, a, 0, b, 0, 0);
  multiply<true>(d, a, 0, b, 0, 1);
}

// And all others, the smallest first.
template <bool ADD>
__device__ __forceinline__ void multiply_low(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (PLANES == 3) {
      if (k) multiply<true>(d, a, 2, b, 2, k);
      else multiply<ADD>(d, a, 2, b, 2, k);
      multiply<true>(d, a, 1, b, 2, k);
      multiply<true>(d, a, 2, b, 1, k);
      multiply<true>(d, a, 0, b, 2, k);
      multiply<true>(d, a, 2, b, 0, k);
      multiply<true>(d, a, 1, b, 1, k);
      multiply<true>(d, a, 0, b, 1, k);
    } else {
      if (k) multiply<true>(d, a, 0, b, 1, k);
      else multiply<ADD>(d, a, 0, b, 1, k);
    }
    multiply<true>(d, a, 1, b, 0, k);
  }
}

// scale_i scale_j of this thread's two rows, where all columns have the same; else negative. All lanes of a warp call.
struct Factors {
  float top, bottom;

  __device__ __forceinline__ void find(const float* scales, int row) {
    const uint4 all = *reinterpret_cast<const uint4*>(scales + BM + 4 * (threadIdx.x % 32));  // none is negative
    const unsigned most = __reduce_max_sync(~0u, max(max(all.x, all.y), max(all.z, all.w)));
    const auto other = [=](unsigned x) { return static_cast<int>(x != most) & static_cast<int>(x != 0); };
    const bool several = __any_sync(~0u, other(all.x) | other(all.y) | other(all.z) | other(all.w));  // zeros': zero
    top = several ? -1.f : scales[row] * __uint_as_float(most);
    bottom = scales[row + 8] * __uint_as_float(most);
  }
};

// sum += scale_i scale_j part, with the scales of a chunk, those of rows, then those of columns; or with `factors`.
__device__ __forceinline__ void promote(float (&sum)[ACCUMULATORS], const float (&part)[ACCUMULATORS],
                                        const Factors& factors, const float* scales, int row, int column) {
  if (__all_sync(~0u, factors.top >= 0.f)) {
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = fmaf(part[i], i / 2 % 2 ? factors.bottom : factors.top, sum[i]);
    return;
  }
  const float* const rows = scales + row;
  const float* const columns = scales + BM + column;
  const float top = rows[0], bottom = rows[8];
#pragma unroll
  for (int i = 0; i < ACCUMULATORS / 4; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(columns + 8 * i);
    sum[4 * i] = fmaf(part[4 * i], top * scale.x, sum[4 * i]);
    sum[4 * i + 1] = fmaf(part[4 * i + 1], top * scale.y, sum[4 * i + 1]);
    sum[4 * i + 2] = fmaf(part[4 * i + 2], bottom * scale.x, sum[4 * i + 2]);
    sum[4 * i + 3] = fmaf(part[4 * i + 3], bottom * scale.y, sum[4 * i + 3]);
  }
}

// The warpgroups take turns at the tensor cores. Without, the hardware deals instructions evenly, both end at the
// same time and the tensor cores wait while both add up.
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(COMPUTE) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(3 - group), "n"(COMPUTE) : "memory");
}

// A chunk, by its two halves' descriptors and its scales. `pass` is called when all is issued, `read` when the operands
// have been. What it leaves in `rest` is to be promoted, with its scales, by the next chunk while that one's corrections
// are multiplied; here `rest`, `factors` and `last` are what the chunk before has left. Of the array that wgmma writes
// ptxas could not tell that its values are there, and would wait.
constexpr bool LATER = !TWICE && !FOUR_TIMES;  // those promote all at once
template <class Pass, class Read>
__device__ __forceinline__ void add_chunk(float (&sum)[ACCUMULATORS], float (&rest)[ACCUMULATORS],
                                          const unsigned long long (&a)[2], const unsigned long long (&b)[2],
                                          const float* last, Factors& factors, const float* scales, int row, int column,
                                          Pass pass, Read read) {
  float high[ACCUMULATORS], low[ACCUMULATORS];
  wgmma_fence();
  if (TWICE) {  // the first time under way
    multiply_high<false>(high, a[0], b[0]);
    wgmma_commit();
    multiply_low<false>(low, a[0], b[0]);
    multiply_low<true>(low, a[1], b[1]);
    wgmma_commit();
    factors.find(scales, row);
    wgmma_wait<1>();
    promote(sum, high, factors, scales, row, column);
    wgmma_fence();
    multiply_high<false>(high, a[1], b[1]);
  } else if (FOUR_TIMES) {
    multiply_low<false>(low, a[0], b[0]);
    multiply_low<true>(low, a[1], b[1]);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply<false>(high, a[step / 2], 0, b[step / 2], 0, step % 2);
      if (step == 3) break;
      wgmma_commit();
      if (step == 0) factors.find(scales, row);
      wgmma_wait<0>();
      promote(sum, high, factors, scales, row, column);
      wgmma_fence();
    }
  } else {
    multiply_low<false>(low, a[0], b[0]);
    multiply_low<true>(low, a[1], b[1]);
    wgmma_commit();
    __syncwarp();  // nothing of what follows goes before them
    promote(sum, rest, factors, last, row, column);
    wgmma_fence();
    multiply_high<false>(high, a[0], b[0]);
    multiply_high<true>(high, a[1], b[1]);
  }
  wgmma_commit();
  pass();
  if (LATER) factors.find(scales, row);
  wgmma_wait<0>();
  read();
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; ++i) rest[i] = fmaf(low[i], 1.f / LOW_SCALE, high[i]);
  if (!LATER) promote(sum, rest, factors, scales, row, column);
}

// Eight rows by 64 of a warp's sums, the p-th of them, to `staged`.
__device__ __forceinline__ void stage_sums(const float (&sum)[ACCUMULATORS], int p, float* staged, int lane) {
  constexpr int ACROSS = BN / 64;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int at = p % ACROSS * 32 + 4 * i + p / ACROSS * 2;
    *reinterpret_cast<float2*>(staged + lane / 4 * STAGED_PITCH + lane % 4 * 2 + 8 * i) = make_float2(sum[at], sum[at + 1]);
  }
}

// The results of a warp, 8 x 64 of its 16 x BN sums at a time, by way of `staged`; `row`: its first; `strip`: of 64
// columns, where the other warpgroup stores the others. Where all of a tile is stored as it lies, unrolled, with no test:
// less than half of the instructions (4096 x 4096 x 128: 39.2 us instead of 40.5).
__device__ __forceinline__ void store_sums(const float (&sum)[ACCUMULATORS], const Output& out, float* staged, int row,
                                           int lane, int strip = 0) {
  constexpr int ACROSS = BN / 64;
  if (!TRANS_C && out.whole) {
    float* const first = out.plain ? out.at(row + lane / 16, lane % 16 * 4) : out.at(row, lane);
#pragma unroll
    for (int p = 0; p < 2 * ACROSS; ++p) {
      if (ALTERNATE && p % ACROSS != strip) continue;
      __syncwarp();
      stage_sums(sum, p, staged, lane);
      __syncwarp();
      float* to = first + p / ACROSS * 8 * out.ldc + p % ACROSS * 64;
      if (out.plain) {
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          v[i] = *reinterpret_cast<const float4*>(staged + (2 * i + lane / 16) * STAGED_PITCH + lane % 16 * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i, to += 2 * out.ldc)
          *reinterpret_cast<float4*>(to) =
              make_float4(out.alpha * v[i].x, out.alpha * v[i].y, out.alpha * v[i].z, out.alpha * v[i].w);
      } else {
        float v[16];
#pragma unroll
        for (int t = 0; t < 16; ++t) v[t] = out.alpha * staged[t / 2 * STAGED_PITCH + t % 2 * 32 + lane];
#pragma unroll
        for (int t = 0; t < 16; t += 2, to += out.ldc) to[0] = v[t], to[32] = v[t + 1];
      }
    }
    return;
  }
#pragma unroll 1
  for (int part = strip; part < 2 * ACROSS; part += ALTERNATE ? ACROSS : 1) {
    __syncwarp();
#pragma unroll
    for (int p = 0; p < 2 * ACROSS; ++p)
      if (p == part) stage_sums(sum, p, staged, lane);
    __syncwarp();
    out.store_rows(staged, row + part / ACROSS * 8, part % ACROSS * 64, lane);
  }
}
