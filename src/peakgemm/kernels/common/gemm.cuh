// What a kernel of the library is asked: C = alpha op(A) op(B) + beta C0, batched. One struct by value,
// so that a launch has the same six parameters whatever the problem.
struct Gemm {
  long long lda, ldb, ldc;    // elements from row to row as stored
  long long c0_row, c0_col;   // strides of the matrix that beta scales; 0 broadcasts
  long long a_batch[3], b_batch[3], c_batch[3], c0_batch[3];  // elements, outermost first; 0 broadcasts
  int batch[3];               // sizes, 1 where unused
  int M, N, K;
  float alpha, beta;
  // Tiles, counted over the whole batch: the first `whole` are computed by one block each; the k-steps of the
  // next `shared` are dealt evenly to `parts` ranges, whose partial sums another kernel adds up.
  int whole, shared, parts;
};

constexpr int THREADS = (BM / TM) * (BN / TN);  // of one slice

// Kernels that are over in microseconds define QUICK_DIVISION: a quotient is then mostly known to be 0, or to have 32
// bits, without a division. The large FFMA kernels do not: the tests move the registers of their main loops, which took
// 7 to 15 % longer.
#ifdef QUICK_DIVISION
constexpr bool QUICK = true;
#else
constexpr bool QUICK = false;
#endif

__device__ __forceinline__ int quotient(int x, int y) {
  return QUICK && x < y ? 0 : QUICK ? static_cast<unsigned>(x) / static_cast<unsigned>(y) : x / y;
}

__device__ __forceinline__ long long wide_quotient(long long x, long long y) {
  return QUICK && !((x | y) >> 32) ? static_cast<unsigned>(x) / static_cast<unsigned>(y) : x / y;
}

// By a number that is RASTER but at the edge.
__device__ __forceinline__ int raster_quotient(int x, int y) {
  return QUICK && y == RASTER ? x / RASTER : quotient(x, y);
}

// Element offset of matrix `index` of the batch.
__device__ __forceinline__ long long batch_offset(const Gemm& g, const long long (&strides)[3], int index) {
  long long offset = 0;
#pragma unroll
  for (int level = 2; level >= 0; --level) {
    if (QUICK) {
      const int outer = quotient(index, g.batch[level]);
      offset += (index - outer * g.batch[level]) * strides[level];
      index = outer;
    } else {
      offset += index % g.batch[level] * strides[level];
      index /= g.batch[level];
    }
  }
  return offset;
}

// A tile of C: which matrix of the batch, first row, first column.
struct Place {
  int batch, m, n;
};

// Tiles in groups of RASTER rows, column by column within a group: what runs at the same time then reads few
// distinct rows of A and columns of B, which stay in L2.
__device__ __forceinline__ Place place_of(const Gemm& g, int tile) {
  const int across = (g.N + BN - 1) / BN, down = (g.M + BM - 1) / BM;
  const int batch = quotient(tile, across * down);
  tile -= batch * across * down;
  const int group = quotient(tile, RASTER * across);
  const int inside = tile - group * RASTER * across;
  const int height = min(RASTER, down - group * RASTER);
  if (!QUICK) return {batch, (group * RASTER + inside % height) * BM, inside / height * BN};
  const int column = raster_quotient(inside, height);
  return {batch, (group * RASTER + inside - column * height) * BM, column * BN};
}

// K-tiles begin..end of one tile of C; `slot` of the partial sums, or -1 where the tile is computed whole.
struct Segment {
  int tile, begin, end, slot;
};

// First of the k-tiles (counted through all shared tiles) in range `part`.
__device__ __forceinline__ long long part_begin(const Gemm& g, int steps, int part) {
  return wide_quotient(static_cast<long long>(g.shared) * steps * part, g.parts);
}

// Segment `half` of work item `item`: a whole tile is one segment, a range of shared k-tiles touches two
// tiles at most (parts >= shared). False where there is none.
__device__ __forceinline__ bool segment_of(const Gemm& g, int steps, int item, int half, Segment& s) {
  if (item < g.whole) {
    s = {item, 0, steps, -1};
    return half == 0;
  }
  const int part = item - g.whole;
  const long long begin = part_begin(g, steps, part), end = part_begin(g, steps, part + 1);
  const int first = static_cast<int>(wide_quotient(begin, steps));
  const long long border = static_cast<long long>(first + 1) * steps;
  const long long from = half ? border : begin, to = half ? end : min(end, border);
  if (from >= to) return false;
  const int tile = first + half;
  s = {g.whole + tile, static_cast<int>(from - static_cast<long long>(tile) * steps),
       static_cast<int>(to - static_cast<long long>(tile) * steps), half ? part + g.parts : part};
  if (s.begin == 0 && s.end == steps) s.slot = -1;
  return true;
}
