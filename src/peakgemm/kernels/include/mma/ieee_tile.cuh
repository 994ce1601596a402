// Half a tile of C by FFMAs from the operands themselves: where the guard found that the split would not do.
// A warpgroup, 64 columns at a time, 8 x 4 results a thread, 8 rows and 16 columns apart. Sums of IEEE_SHORT k-steps
// are added up with compensation (Kahan, "Further remarks on reducing truncation errors", 1965): where exponents span
// much, few products count, each rounded as often as others follow it. Of log-uniform data with K = 1024 the mean
// error is 0.28 eps, 0.39 with plain sums of sums of 16, cuBLAS's 0.38.
#include "include/epilogue/output.cuh"
#include "include/split/split_panel.cuh"

constexpr int IEEE_ROWS = 64, IEEE_COLUMNS = 64;
constexpr int IEEE_K = 16, IEEE_SHORT = 32;
constexpr int IEEE_OPERANDS = IEEE_K * (IEEE_ROWS + 1 + IEEE_COLUMNS + 1), IEEE_RESULTS = 4 * 8 * STAGED_PITCH;
constexpr int IEEE_FLOATS = IEEE_OPERANDS > IEEE_RESULTS ? IEEE_OPERANDS : IEEE_RESULTS;  // of one warpgroup

__device__ __forceinline__ void warpgroup_meets(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(4 + group) : "memory");
}

// Copies ROWS_HERE rows by IEEE_K of one operand, k outermost, zeros outside: a warpgroup reads along K where that is
// contiguous, else along the rows. What is read is kept in registers while the tile before is computed.
template <int ROWS_HERE>
struct IeeePanel {
  static constexpr int PITCH = ROWS_HERE + 1;  // else the words of a row of K would share a bank
  static constexpr int EACH = ROWS_HERE * IEEE_K / 128, BELOW = 128 / ROWS_HERE;
  const float* next;
  long long step, forward;  // elements to this thread's next word, to the next tile
  int row, k, rows, place, places;
  bool along_k;
  float held[EACH];

  __device__ __forceinline__ IeeePanel(const float* operand, long long row_step, long long col_step, long long there,
                                       int thread) {
    along_k = col_step == 1;
    row = along_k ? thread / 16 : thread % ROWS_HERE;
    k = along_k ? thread % 16 : thread / ROWS_HERE;
    rows = there < ROWS_HERE ? static_cast<int>(there) : ROWS_HERE;
    step = along_k ? 8 * row_step : BELOW * col_step;
    forward = IEEE_K * col_step;
    next = operand + row * row_step + k * col_step;
    place = k * PITCH + row;
    places = along_k ? 8 : BELOW * PITCH;
  }

  __device__ __forceinline__ void load(int left) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const bool inside = along_k ? row + 8 * i < rows && k < left : row < rows && k + BELOW * i < left;
      held[i] = inside ? __ldg(next + i * step) : 0.f;
    }
    next += forward;
  }

  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < EACH; ++i) to[place + i * places] = held[i];
  }
};

// `a` and `b`: the first rows of op(A) and op(B)^T, `rows` and `columns` to the edge, from where on `depth` of K are
// summed; `top`: that row of the tile.
__device__ __forceinline__ void ieee_tile(const float* a, const float* b, int rows, int columns, const Output& out,
                                          const Emulated& e, int top, int depth, float* staging, int group,
                                          int thread) {
  const int row = thread / 16, column = thread % 16;
  float* const staged_b = staging + IEEE_K * IeeePanel<IEEE_ROWS>::PITCH;
#pragma unroll 1
  for (int first = 0; first < BN; first += IEEE_COLUMNS) {
    float sum[8][4] = {}, part[8][4] = {}, excess[8][4] = {};
    IeeePanel<IEEE_ROWS> panel_a(a, e.a_row, e.a_col, rows, thread);
    IeeePanel<IEEE_COLUMNS> panel_b(b + first * e.b_row, e.b_row, e.b_col, columns - first, thread);
    panel_a.load(depth);
    panel_b.load(depth);
#pragma unroll 1
    for (int k = 0; k < depth; k += IEEE_K) {
      warpgroup_meets(group);
      panel_a.store(staging);
      panel_b.store(staged_b);
      warpgroup_meets(group);
      panel_a.load(depth - k - IEEE_K);
      panel_b.load(depth - k - IEEE_K);
#pragma unroll 4
      for (int dk = 0; dk < IEEE_K; ++dk) {
        float x[8], y[4];
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = staging[dk * IeeePanel<IEEE_ROWS>::PITCH + row + 8 * i];
#pragma unroll
        for (int j = 0; j < 4; ++j) y[j] = staged_b[dk * IeeePanel<IEEE_COLUMNS>::PITCH + column + 16 * j];
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) part[i][j] = fmaf(x[i], y[j], part[i][j]);
      }
      if ((k + IEEE_K) % IEEE_SHORT && k + IEEE_K < depth) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float next = part[i][j] - excess[i][j], total = sum[i][j] + next;
          excess[i][j] = isfinite(total) ? total - sum[i][j] - next : 0.f;
          sum[i][j] = total, part[i][j] = 0.f;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) out.store(top + row + 8 * i, first + column + 16 * j, sum[i][j]);
  }
}

// A segment of K of half a tile, where the split would not do.
__device__ __forceinline__ void reroute(const float* A, const float* B, const Output& out, const Emulated& e,
                                        Place place, const Segment& s, float* staging, int group) {
  const Gemm& g = e.g;
  const int top = IEEE_ROWS * group, rows = TRANS_C ? g.M - place.m : out.rows;  // of a slot `out` has all
  if (top >= rows) return;
  const long long begin = static_cast<long long>(s.begin) * CHUNK, most = (s.end - s.begin) * CHUNK;
  ieee_tile(A + batch_offset(g, g.a_batch, place.batch) + (place.m + top) * e.a_row + begin * e.a_col,
            B + batch_offset(g, g.b_batch, place.batch) + place.n * e.b_row + begin * e.b_col, rows - top,
            min(g.N - place.n, BN), out, e, top, static_cast<int>(min(g.K - begin, most)), staging, group,
            threadIdx.x % 128);
}
