// Half a tile of C, 64 x 128, by FFMAs from the operands themselves: where the guard found that the split would not do.
// A warpgroup, 8 x 8 results a thread, 8 rows and 16 columns apart. Sums are carried over every IEEE_K k-steps, so
// that rounding errors grow with the number of those and not with K.
constexpr int IEEE_ROWS = 64, IEEE_COLUMNS = 128;
constexpr int IEEE_K = 16;
constexpr int IEEE_FLOATS = IEEE_K * (IEEE_ROWS + 1 + IEEE_COLUMNS + 1);  // of one warpgroup

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
  float sum[8][8] = {}, part[8][8] = {};
  float* const staged_b = staging + IEEE_K * IeeePanel<IEEE_ROWS>::PITCH;
  IeeePanel<IEEE_ROWS> panel_a(a, e.a_row, e.a_col, rows, thread);
  IeeePanel<IEEE_COLUMNS> panel_b(b, e.b_row, e.b_col, columns, thread);
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
#pragma unroll 2
    for (int dk = 0; dk < IEEE_K; ++dk) {
      float x[8], y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = staging[dk * IeeePanel<IEEE_ROWS>::PITCH + row + 8 * i];
        y[i] = staged_b[dk * IeeePanel<IEEE_COLUMNS>::PITCH + column + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) part[i][j] = fmaf(x[i], y[j], part[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[i][j] += part[i][j], part[i][j] = 0.f;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) out.store(top + row + 8 * i, column + 16 * j, sum[i][j]);
}
