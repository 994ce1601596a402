// Checksums of matrices: X r and l^T X for two vectors r or two vectors l, and norms of rows and columns, in FP64, from
// one read of X. A certificate compares those of a product with those of its operands.
//
// Idea: a warp has 256 columns, eight a lane, and goes down a strip of rows, four at a time. Sums of columns stay in
// registers. Sums of rows are exchanged between lanes, of four rows at once: each lane is left with one of them. What
// blocks leave is added up in a fixed order. The bottleneck is DRAM.
//
// Phases, each a launch: START draws the signs' seed and clears the flags; PARTS reads X; SUM adds up, and in the last
// pass that every product takes says whether a row looks wrong: only then do later passes look at columns. A pass that
// is seldom taken is one launch, in which the last block adds up: launches take time, even those that do nothing.
//
// A: X, whose rows are contiguous. C: what a certificate keeps of each matrix, doubles; the struct says what lies
// where. The first holds the seed, the next two flags and a counter. The workspace: sums of rows, [batch][slabs][ROW_SUMS][rows], then
// of columns, [batch][strips][COLUMN_SUMS][columns].

#include "include/ptx/dependents.cuh"

struct Checksums {
  long long pitch, batch, kept;    // floats from row to row and from matrix to matrix, doubles between what is kept
  long long right, left;           // where r and l lie in what is kept; or signs, by the product's columns (-1) or rows
  long long row_mask, column_mask; // where norms lie: X is not read where they are not finite; -1: none
  long long weights, norm_weights; // where norms lie that weigh magnitudes, and elements of norms; -1: ones
  long long to_rows, to_columns;   // where the sums go
  long long product, old;          // of the judging pass: where A (B x) and C0 x lie; -1: there is none
  double alpha, beta;              // of the product
  double of_scale, beside;         // a row is suspect where |(C - alpha A B - beta C0) x| > of_scale g + beside
  int rows, columns, count, strips, phase;
  int inverse;                     // whether elements of norms are divided by their weights
  int wanted;                      // the flag without which nothing is done; -1: always
  int row_flag, column_flag;       // to be set where a norm is not finite; -1: none
  int judging;
  unsigned seed_low, seed_high;    // both 0: drawn
};
enum Phase { START, PARTS, SUM };
enum Flag { B_NOT_FINITE, A_NOT_FINITE, SUSPECT, FLAGS, BLOCKS = FLAGS };  // BLOCKS: those that have left their parts
// What is asked for of rows, and of columns. 0: nothing. 1: products with each vector, and norms. 2: products, sums of
// weighted magnitudes, and norms of weighted elements; 3: the latter. One of both sides, at most, is weighted.
#ifndef RIGHT
#define RIGHT 1
#endif
#ifndef LEFT
#define LEFT 0
#endif
constexpr int VECTORS = 2, EACH = 8, SLAB = 32 * EACH, GROUP = 4, WARPS = 4, THREADS = 32 * WARPS;
constexpr int RIGHTS = RIGHT % 3 ? VECTORS : 0, LEFTS = LEFT % 3 ? VECTORS : 0;
constexpr bool WEIGHTED_COLUMNS = RIGHT > 1, WEIGHTED_ROWS = LEFT > 1;
#if __CUDA_ARCH__ == 900
constexpr int RESIDENT = 3;  // blocks that an SM's registers have room for
#else
constexpr int RESIDENT = 2;  // for three of them ptxas spills
#endif
constexpr int ROW_SUMS = RIGHTS + (RIGHT == 2) + (RIGHT > 0), COLUMN_SUMS = LEFTS + (LEFT == 2) + (LEFT > 0);

// Wellons, "Prospecting for Hash Functions" (2018): lowbias32.
__device__ __forceinline__ unsigned mixed(unsigned x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Whose bits are the signs of all vectors at an index.
__device__ __forceinline__ unsigned signs(const unsigned* seed, long long which, int index) {
  return mixed(mixed(index + seed[0]) ^ seed[1] + static_cast<unsigned>(which));
}
__device__ __forceinline__ double sign(unsigned bits, int vector) { return bits >> (31 - vector) & 1 ? -1.0 : 1.0; }

// The weight of a magnitude, and of an element of a norm.
__device__ __forceinline__ double2 weight(const Checksums& s, const double* kept, int index) {
  const double norm = s.norm_weights < 0 ? 1 : kept[s.norm_weights + index], scale = norm > 0 && isfinite(norm) ? norm : 1;
  return {s.weights < 0 ? 0 : kept[s.weights + index], s.inverse ? 1 / scale : scale};
}

// The sum over all lanes of four values each: of value lane / 8.
__device__ __forceinline__ double exchanged(const double (&values)[GROUP], int lane) {
  const bool upper = lane & 16, odd = lane & 8;
  double first = upper ? values[2] : values[0], second = upper ? values[3] : values[1];
  first += __shfl_xor_sync(0xffffffff, upper ? values[0] : values[2], 16);
  second += __shfl_xor_sync(0xffffffff, upper ? values[1] : values[3], 16);
  double sum = odd ? second : first;
  sum += __shfl_xor_sync(0xffffffff, odd ? first : second, 8);
#pragma unroll
  for (int step = 4; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  return sum;
}

__device__ void start(const Checksums& s, double* kept) {
  __shared__ unsigned seed[2];
  if (threadIdx.x == 0) {
    unsigned long long now = static_cast<unsigned long long>(s.seed_high) << 32 | s.seed_low;
    if (now == 0) {
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      now = now * 0x9e3779b97f4a7c15ull ^ clock64();
    }
    seed[0] = static_cast<unsigned>(now), seed[1] = static_cast<unsigned>(now >> 32);
  }
  __syncthreads();
  for (int matrix = threadIdx.x; matrix < s.count; matrix += THREADS) {
    int* const head = reinterpret_cast<int*>(kept + matrix * s.kept);
    head[0] = seed[0], head[1] = seed[1];
    for (int flag = 0; flag <= BLOCKS; ++flag) head[2 + flag] = 0;
  }
}

// Whether the product with a vector, number ``at`` of all, of one of the product's rows is off; not where norms are not
// finite. C's rows are X's columns where it lies that way.
__device__ bool is_suspect(const Checksums& s, const double* kept, int at, int rows, double sum) {
  const int row = at % rows;
  double off = sum, scale = 0;
  if (s.product >= 0) {  // A's sums: products, magnitudes, norms
    const double* const product = kept + s.product;
    if (!isfinite(product[(VECTORS + 1ll) * rows + row])) return false;
    off -= s.alpha * product[at], scale = fabs(s.alpha) * product[static_cast<long long>(VECTORS) * rows + row];
  }
  if (s.old >= 0) {
    const double* const old = kept + s.old;
    const double norm = old[static_cast<long long>(VECTORS) * rows + row];
    if (!isfinite(norm)) return false;
    off -= s.beta * old[at], scale += fabs(s.beta) * norm;
  }
  return !(fabs(off) <= s.of_scale * scale + s.beside);
}

// One of all sums of a matrix.
__device__ void sum(const Checksums& s, double* kept, const double* row_parts, const double* column_parts, int slabs,
                    int number) {
  const int rows = ROW_SUMS * s.rows, columns = COLUMN_SUMS * s.columns;
  const bool of_row = number < rows;
  const int length = of_row ? rows : columns, parts = of_row ? slabs : s.strips, at = of_row ? number : number - rows;
  const double* const from = (of_row ? row_parts : column_parts) + at;
  const bool norm = at >= length - (of_row ? s.rows : s.columns);
  const bool product = at < (of_row ? RIGHTS * s.rows : LEFTS * s.columns);
  double sum = 0;
#pragma unroll 8
  for (int part = 0; part < parts; ++part) sum += __ldcg(from + static_cast<long long>(part) * length);
  // A second pass leaves the norms whose lines it left out.
  if (!product && s.wanted >= 0 && s.wanted < SUSPECT && (of_row ? s.row_mask : s.column_mask) >= 0) return;
  kept[(of_row ? s.to_rows : s.to_columns) + at] = norm ? sqrt(sum) : sum;
  int* const flags = reinterpret_cast<int*>(kept + 1);
  const int flag = of_row ? s.row_flag : s.column_flag;
  if (norm && flag >= 0 && !isfinite(sum)) atomicOr(flags + flag, 1);
  if (s.judging && product && is_suspect(s, kept, at, of_row ? s.rows : s.columns, sum)) atomicOr(flags + SUSPECT, 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
linalg_checksums(const float* A, const float* B, const float* C0, float* C, char* workspace,
                 const __grid_constant__ Checksums s) {
  __shared__ double shared[LEFT ? WARPS : 1][LEFT ? SLAB : 1];
  __shared__ double2 weights[WEIGHTED_COLUMNS ? SLAB : 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slabs = (s.columns + SLAB - 1) / SLAB;
  const int all = ROW_SUMS * s.rows + COLUMN_SUMS * s.columns, summing = (all + THREADS - 1) / THREADS;
  previous_kernel_has_ended();
  if (s.phase == START) return start(s, reinterpret_cast<double*>(C));
  const int blocks = s.phase == SUM ? summing : slabs * s.strips;  // of a matrix
  const long long matrix = blockIdx.x / blocks;
  const int slab = blockIdx.x % blocks % slabs, strip = blockIdx.x % blocks / slabs;
  double* const kept = reinterpret_cast<double*>(C) + matrix * s.kept;
  int* const flags = reinterpret_cast<int*>(kept + 1);
  if (s.wanted >= 0 && !flags[s.wanted]) return;
  double* const row_sums = reinterpret_cast<double*>(workspace) + matrix * slabs * ROW_SUMS * s.rows;
  double* const column_sums = reinterpret_cast<double*>(workspace) + s.count * (1ll * slabs) * ROW_SUMS * s.rows +
                              matrix * s.strips * COLUMN_SUMS * s.columns;
  if (s.phase == SUM) {
    const int number = blockIdx.x % blocks * THREADS + threadIdx.x;
    if (number < all) sum(s, kept, row_sums, column_sums, slabs, number);
    return;
  }
  const unsigned seed[2] = {reinterpret_cast<const unsigned*>(kept)[0], reinterpret_cast<const unsigned*>(kept)[1]};
  double* const row_parts = row_sums + static_cast<long long>(slab) * ROW_SUMS * s.rows;
  double* const column_parts = column_sums + static_cast<long long>(strip) * COLUMN_SUMS * s.columns;
  constexpr int STEP = WARPS * GROUP;
  const int height = ((s.rows + s.strips - 1) / s.strips + STEP - 1) / STEP * STEP;
  const int first = strip * height, last = min(s.rows, first + height);
  const float* const from = A + matrix * s.batch + slab * SLAB + lane;
  bool read[EACH];
  double right[EACH][VECTORS], sums[EACH][COLUMN_SUMS + 1] = {};
  const double *const given = kept + s.right, *const beside = kept + s.left;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int column = slab * SLAB + 32 * i + lane;
    read[i] = column < s.columns && (s.column_mask < 0 || isfinite(kept[s.column_mask + column]));
    const unsigned bits = signs(seed, s.right, column);
#pragma unroll
    for (int v = 0; v < RIGHTS; ++v)
      right[i][v] = s.right < 0 ? sign(bits, v) : read[i] ? given[static_cast<long long>(v) * s.columns + column] : 0;
  }
  if constexpr (WEIGHTED_COLUMNS) {
    for (int at = threadIdx.x; at < SLAB; at += THREADS)
      weights[at] = slab * SLAB + at < s.columns ? weight(s, kept, slab * SLAB + at) : double2{0, 0};
    __syncthreads();
  }
  // Four rows, of which the next are on their way while sums are made of these.
  float next[GROUP][EACH];
  bool coming[GROUP];
  const auto fetch = [&](int row) {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      coming[g] = row + g < last && (s.row_mask < 0 || isfinite(kept[s.row_mask + row + g]));
      const float* const at = from + (row + g) * s.pitch;
#pragma unroll
      for (int i = 0; i < EACH; ++i) next[g][i] = coming[g] && read[i] ? at[32 * i] : 0.f;
    }
  };
  fetch(first + warp * GROUP);
#pragma unroll 1
  for (int row = first + warp * GROUP; row < last; row += STEP) {
    float x[GROUP][EACH];
    bool inside[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      inside[g] = coming[g];
#pragma unroll
      for (int i = 0; i < EACH; ++i) x[g][i] = next[g][i];
    }
    fetch(row + STEP);
    double line[ROW_SUMS + 1][GROUP] = {};
    const unsigned bits = signs(seed, s.left, row + lane % GROUP);
    double2 mine = {0, 0};  // of a row, as the bits are
    if (WEIGHTED_ROWS && row + lane % GROUP < last) mine = weight(s, kept, row + lane % GROUP);
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      const unsigned own = __shfl_sync(0xffffffff, bits, g);
      double left[VECTORS];
#pragma unroll
      for (int v = 0; v < LEFTS; ++v)
        left[v] = s.left < 0 ? sign(own, v) : inside[g] ? beside[static_cast<long long>(v) * s.rows + row + g] : 0;
      double2 by = mine;
      if (WEIGHTED_ROWS) by = {__shfl_sync(0xffffffff, mine.x, g), __shfl_sync(0xffffffff, mine.y, g)};
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const double value = x[g][i], weighted = WEIGHTED_ROWS ? value * by.y : value;
        if constexpr (RIGHT == 1) line[ROW_SUMS - 1][g] = fma(value, value, line[ROW_SUMS - 1][g]);
        if constexpr (LEFT == 2) sums[i][LEFTS] = fma(fabs(value), by.x, sums[i][LEFTS]);
        if constexpr (LEFT > 0) sums[i][COLUMN_SUMS - 1] = fma(weighted, weighted, sums[i][COLUMN_SUMS - 1]);
#pragma unroll
        for (int v = 0; v < RIGHTS; ++v) line[v][g] = fma(value, right[i][v], line[v][g]);
#pragma unroll
        for (int v = 0; v < LEFTS; ++v) sums[i][v] = fma(value, left[v], sums[i][v]);
      }
    }
    if constexpr (WEIGHTED_COLUMNS) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const double2 by = weights[32 * i + lane];
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
          const double value = x[g][i], weighted = value * by.y;
          if constexpr (RIGHT == 2) line[RIGHTS][g] = fma(fabs(value), by.x, line[RIGHTS][g]);
          line[ROW_SUMS - 1][g] = fma(weighted, weighted, line[ROW_SUMS - 1][g]);
        }
      }
    }
#pragma unroll
    for (int v = 0; v < ROW_SUMS; ++v) {
      const double whole = exchanged(line[v], lane);
      const int own = row + lane / 8;
      if (lane % 8 == 0 && own < last) row_parts[static_cast<long long>(v) * s.rows + own] = whole;
    }
  }
  if constexpr (LEFT > 0) {
#pragma unroll
    for (int v = 0; v < COLUMN_SUMS; ++v) {
      __syncthreads();  // the sums before have been read
#pragma unroll
      for (int i = 0; i < EACH; ++i) shared[warp][32 * i + lane] = sums[i][v];
      __syncthreads();
      for (int at = threadIdx.x; at < SLAB && slab * SLAB + at < s.columns; at += THREADS) {
        double whole = shared[0][at];
        for (int other = 1; other < WARPS; ++other) whole += shared[other][at];
        column_parts[static_cast<long long>(v) * s.columns + slab * SLAB + at] = whole;
      }
    }
  }
  if (s.wanted < 0) return;
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(flags + BLOCKS, 1) == blocks - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int number = threadIdx.x; number < all; number += THREADS)
    sum(s, kept, row_sums, column_sums, slabs, number);
  if (threadIdx.x == 0) flags[BLOCKS] = 0;
}
