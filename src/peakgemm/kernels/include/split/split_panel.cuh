// An operand, split for the tensor cores: what the split pass writes and the product kernels read.
//
// A panel holds ROWS rows (of M or of N) by one CHUNK of K, as PLANES matrices of narrower floats that add up to
// the FP32 values, scaled by a power of two per row and chunk. It lies in memory as it will lie in shared
// memory, 16-byte pieces swizzled as wgmma reads them, in two HALVES of 64 bytes of K a row: a stage is one bulk copy.
// SCHEME's names are those of narrow.cuh.
#include "include/scheduler/gemm.cuh"
#include "include/split/narrow.cuh"

constexpr int ROWS = 128;
constexpr int PLANES = SCHEME == BF16X9 ? 3 : 2;
constexpr int ELEMENT = SCHEME == TF32X3 ? 4 : 2;  // bytes
constexpr int CHUNK = 128 / ELEMENT;
constexpr int PIECE = 16 / ELEMENT;      // elements of a 16-byte piece
constexpr int PLANE = ROWS * 64;         // bytes, of one half
constexpr int HALF = PLANES * PLANE;
constexpr int SCALES = 2 * HALF;         // after the halves: a float a row, what its elements were divided by
constexpr int SUMMARY = ROWS * 4;        // in a tail: after the scales,
constexpr int COUNTS = SUMMARY + 32;     // and after the summary a byte a row: how many elements are not zero
constexpr int TAIL = COUNTS + ROWS;
constexpr int PANEL = SCALES + TAIL;     // bytes in all
constexpr int PANEL_PITCH = (PANEL + 127) / 128 * 128;

// The largest element of a row is scaled into [2^TOP, 2^(TOP+1)): FP16 ends at 65504, just below 2^16. Of a panel of B
// whose rows (columns of B) share a scale (split.cu) the largest of all is.
constexpr int TOP = 14;
// Binary orders to scale by where the largest has that exponent, as far as they are a power of two in FP32.
__device__ __forceinline__ int shift_to_top(int exponent) { return max(min(TOP - exponent, 126), -126); }
// FP16's second plane is kept 2^11 times larger, or it would sink into FP16's subnormals. Its products have
// accumulators of their own.
constexpr float LOW_SCALE = SCHEME == FP16X3 ? 2048.f : 1.f;
// Scaled elements below this lose bits: FP16's first plane ends at 2^-24, its second at 2^-35; the other
// formats have FP32's exponents.
constexpr float LOSSY = SCHEME == FP16X3 ? 0x1p-13f : 0x1p-98f;

// What the guard needs of a panel. Exponents are those of the rows' largest elements; a row of zeros has none.
struct __align__(16) Summary {
  int high;           // largest exponent; NOT_FINITE: an infinity or a NaN
  int low;            // smallest exponent
  int fewest;         // elements that are not zero, of the row that has fewest
  int flags;          // SOME_LOSSY where a bit of these is set, ONE_SCALE where all rows have the one of the largest
  unsigned lossy[4];  // a bit for each row with an element that loses bits
};
constexpr int SOME_LOSSY = 1, ONE_SCALE = 2;
constexpr int NOT_FINITE = 1 << 20;
constexpr int NO_ROW = -(1 << 20);

// The head of a workspace, set to zero by the split pass. Kernels that split A themselves mark instead, behind it, each
// half tile that was computed with FFMAs. The panels of A follow, then those of B.
struct Progress {
  unsigned met;   // copying threads that came to a meeting
  int rerouted;   // half tiles that were computed with FFMAs
};
constexpr int WORKSPACE_HEAD = 256;  // bytes

// Byte of piece `piece` (of eight) of row `row`, in the first plane of its half.
__device__ __forceinline__ int piece_at(int row, int piece) {
  return piece / 4 * HALF + row * 64 + ((piece % 4 ^ (row / 2 & 3)) << 4);
}

// What an emulated product is asked, beside the product itself.
struct Emulated {
  Gemm g;
  long long a_row, a_col, b_row, b_col;  // elements from row to row of op(A), and along K; of op(B)^T
  char* panels_a;  // split beforehand; null: in the workspace
  char* panels_b;
  long long b_offset, partial_offset;  // of B's panels and of partial sums in the workspace
  int a_step[3], b_step[3];  // from one split matrix to the next, for each level of the batch; 0: broadcast
  int a_matrices, b_matrices;  // to be split; 0: they are already
  int meet;  // whether all blocks' copying threads meet at the start of their tiles
  int unused;
};

__device__ __forceinline__ char* panels_a(const Emulated& e, char* workspace) {
  return e.panels_a ? e.panels_a : workspace + WORKSPACE_HEAD;
}
__device__ __forceinline__ char* panels_b(const Emulated& e, char* workspace) {
  return e.panels_b ? e.panels_b : workspace + e.b_offset;
}

__device__ __forceinline__ int chunks_of(const Gemm& g) { return (g.K + CHUNK - 1) / CHUNK; }

// The panel of rows `row`.. and one chunk of a split matrix; the others along K follow.
__device__ __forceinline__ const char* panel_of(const char* panels, int matrix, int row, int rows, int chunks,
                                                int chunk) {
  const int down = (rows + ROWS - 1) / ROWS;
  const int at = min(row / ROWS, down - 1);  // a cluster may reach past the last row
  return panels + ((static_cast<long long>(matrix) * down + at) * chunks + chunk) * PANEL_PITCH;
}
