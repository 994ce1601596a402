#include "include/scheduler/triangle.cuh"

// Division by a number that the host knew, without dividing: exact for 0 <= x < 2^31 (kernels/schedule.py). A launch
// begins with several, one after the other, and a tile ends with some: real divisions are 10 % of the smallest
// products.
struct Divisor {
  unsigned multiplier, shift;
};
__device__ __forceinline__ int over(int x, Divisor d) { return __umulhi(2u * x, d.multiplier) >> d.shift; }

// What a kernel of the library is asked: C = alpha op(A) op(B) + beta C0, batched. One struct by value,
// so that a launch has the same six parameters whatever the problem.
struct Gemm {
  long long lda, ldb, ldc;    // elements from row to row as stored
  long long c0_row, c0_col;   // strides of the matrix that beta scales; 0 broadcasts
  long long a_batch[3], b_batch[3], c_batch[3], c0_batch[3];  // elements, outermost first; 0 broadcasts
  int batch[3];               // sizes, 1 where unused
  int M, N, K;
  float alpha, beta;
  // Tiles, counted over the whole batch: the first `whole` are computed by one block or cluster each; the k-steps of the
  // next `shared` are dealt evenly to `parts` ranges, whose partial sums another kernel adds up.
  int whole, shared, parts;
  int each, rest;             // k-steps of a range: all of them over `parts`, and what is left over
  // Tiles of one matrix; of RASTER rows of them, and rows in the last group; ranges and tiles that share.
  Divisor matrix, group, last, by_parts, by_shared, inner[2];  // batch[1] and batch[2]
};

constexpr int THREADS = (BM / TM) * (BN / TN);  // of one slice

// Offset of matrix `index` of the batch, in what the strides of its levels count.
template <typename T>
__device__ __forceinline__ T batch_offset(const Gemm& g, const T (&strides)[3], int index) {
  const int middle = over(index, g.inner[1]), outer = over(middle, g.inner[0]);
  return (index - middle * g.batch[2]) * strides[2] + (middle - outer * g.batch[1]) * strides[1] + outer * strides[0];
}

// A tile of C: which matrix of the batch, first row, first column.
struct Place {
  int batch, m, n;
};

// Tiles in groups of RASTER rows, column by column within a group: what runs at the same time then reads few
// distinct rows of A and columns of B, which stay in L2. Rows may be those of a cluster's blocks together.
template <int ROWS_OF_C = BM>
__device__ __forceinline__ Place place_of(const Gemm& g, int tile) {
#if TRIANGLE
  const Fold<ROWS_OF_C, BN> fold(g.M);
  const int across = fold.across, down = fold.down;
#else
  const int across = (g.N + BN - 1) / BN, down = (g.M + ROWS_OF_C - 1) / ROWS_OF_C;
#endif
  const int batch = over(tile, g.matrix);
  tile -= batch * across * down;
  const int group = over(tile, g.group);
  const int inside = tile - group * RASTER * across;
  const int height = min(RASTER, down - group * RASTER);
  const int column = height == RASTER ? inside / RASTER : over(inside, g.last);
  Place place = {batch, (group * RASTER + inside - column * height) * ROWS_OF_C, column * BN};
#if TRIANGLE
  fold.unfold(place.m, place.n);
#endif
  return place;
}

// K-tiles begin..end of one tile of C; `slot` of the partial sums, or -1 where the tile is computed whole.
struct Segment {
  int tile, begin, end, slot;
};

// First of the k-tiles (counted through all shared tiles) in range `part`: part shared steps / parts.
__device__ __forceinline__ long long part_begin(const Gemm& g, int part) {
  return static_cast<long long>(part) * g.each + over(part * g.rest, g.by_parts);
}

// Segment `half` of work item `item`: a whole tile is one segment, a range of shared k-tiles touches two
// tiles at most (parts >= shared). False where there is none.
__device__ __forceinline__ bool segment_of(const Gemm& g, int steps, int item, int half, Segment& s) {
  if (item < g.whole) {
    s = {item, 0, steps, -1};
    return half == 0;
  }
  const int part = item - g.whole;
  const long long begin = part_begin(g, part), end = part_begin(g, part + 1);
  const int first = over(part * g.shared, g.by_parts);  // begin / steps
  const long long border = static_cast<long long>(first + 1) * steps;
  const long long from = half ? border : begin, to = half ? end : min(end, border);
  if (from >= to) return false;
  const int tile = first + half;
  s = {g.whole + tile, static_cast<int>(from - static_cast<long long>(tile) * steps),
       static_cast<int>(to - static_cast<long long>(tile) * steps), half ? part + g.parts : part};
  if (s.begin == 0 && s.end == steps) s.slot = -1;
  return true;
}
