// Rows exchanged as the pivots of panels say, in columns beside these panels.
//
// Idea: of a panel at most twice as many rows move as it has columns. A block has 32 columns of the matrix: it reads
// all rows that move, then writes them, panel after panel. The bottleneck is latency, once for each panel.
//
// C: the matrix from the first panel's first row on, which has `columns` beside each other but for `count` from `skip`
// on. The workspace: of each panel, as `lu_panel.cu` leaves it, which row comes to each of its
// first rows, and where each of these goes, if it is not one of these; both counted from the panel's first row.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

constexpr int PANEL = 32 / ROWS, WARPS = 8, THREADS = 32 * WARPS, LINES = (PANEL + WARPS - 1) / WARPS, TILE = 32;

struct Exchange {
  Strides matrix;
  long long moves;  // from matrix to matrix
  int columns, skip, count, pivots;
};

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_exchange(const float* A, const float* B, const float* C0, float* C, char* workspace,
                const __grid_constant__ Exchange s) {
  const int slabs = (s.columns - s.count + TILE - 1) / TILE, batch = blockIdx.x / slabs;
  int column = blockIdx.x % slabs * TILE + threadIdx.x % 32;
  if (column >= s.skip) column += s.count;
  const bool lives = column < s.columns;
  const int* moves = reinterpret_cast<const int*>(workspace) + batch * s.moves;
  float* at = C + batch * s.matrix.batch + column * s.matrix.column;
  previous_kernel_has_ended();
#pragma unroll 1
  for (int first = 0; first < s.pivots; first += PANEL, moves += 2 * PANEL, at += PANEL * s.matrix.row) {
    float comes[LINES], goes[LINES];
    int to[LINES];
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      const int line = threadIdx.x / 32 + i * WARPS;
      to[i] = -1;
      if (!lives || line >= min(PANEL, s.pivots - first)) continue;
      to[i] = moves[PANEL + line];
      comes[i] = at[moves[line] * s.matrix.row];
      goes[i] = at[line * s.matrix.row];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      const int line = threadIdx.x / 32 + i * WARPS;
      if (!lives || line >= min(PANEL, s.pivots - first)) continue;
      at[line * s.matrix.row] = comes[i];
      if (to[i] >= 0) at[to[i] * s.matrix.row] = goes[i];
    }
    __syncthreads();
  }
}
