// FP32 tiles of A and B, loaded, scaled and split into two FP16 planes, stored as wgmma reads them.
//
// Four warps: each has 32 columns of B, one a lane, and 32 rows of A, four at a time with eight lanes a row, so
// that no scale needs another warp. One array of registers holds, in turn, the warp's part of B and of A: as
// soon as a piece is stored, its registers are the target of a load of what comes next. So some 7 KB a warp are on
// the way from memory all the time, and shared memory, which the tensor cores keep busy, stages nothing.
#include "include/rung.cuh"
#include "include/split/narrow.cuh"

constexpr int PIECE = 8;                    // elements of 16 bytes
constexpr int PIECES = BK / PIECE;          // of a row of a chunk
constexpr int ROW = 64;                     // bytes of a row of a plane: half a chunk
constexpr int PLANE = 128 * ROW;            // one half of each element, for half a chunk; the other halves follow
constexpr int B_PLANES = 4 * PLANE;         // where B begins in a stage
constexpr int STAGE = 2 * B_PLANES;
constexpr int SCALES = (BM + BN) * 4;       // of a chunk: what a row of A and a column of B were divided by
constexpr int TOP = 14;                     // the largest element of a row becomes 2^TOP to 2^(TOP+1), below 65504
constexpr float LOW_SCALE = 2048.f;         // the second half is kept this much larger: clear of FP16's subnormals

// Byte of piece `piece` of row `row` in the first halves of an operand: swizzled, as the descriptors say.
__device__ __forceinline__ int piece_at(int row, int piece) {
  return piece / 4 * 2 * PLANE + row * ROW + ((piece % 4 ^ (row / 2 & 3)) << 4);
}

// Element `i` of a piece is this k-step of the chunk. Any order serves that A and B share; in this one four lanes read
// 64 bytes of a row of A at once, whole sectors.
__host__ __device__ constexpr int k_of(int piece, int i) { return piece / 4 * 32 + piece % 4 * 4 + i / 4 * 16 + i % 4; }

// What brings a row whose largest magnitude is `top` to where FP16 has all its bits. A power of two: nothing rounds.
struct Scale {
  float up, down;

  __device__ __forceinline__ explicit Scale(float top) {
    const int exponent = static_cast<int>(__float_as_uint(top) >> 23) - 127;  // infinity's at most: 128
    const int shift = min(TOP - exponent, 126);
    up = __uint_as_float((127 + shift) << 23);
    down = __uint_as_float((127 - shift) << 23);
  }
};

__device__ __forceinline__ float largest(const float (&v)[PIECE]) {
  float top = 0.f;
#pragma unroll
  for (int i = 0; i < PIECE; ++i) top = fmaxf(top, fabsf(v[i]));
  return top;
}

__device__ __forceinline__ void store_piece(char* to, const float (&v)[PIECE], float up) {
  unsigned first[PIECE / 2], second[PIECE / 2];
#pragma unroll
  for (int i = 0; i < PIECE; i += 2) {
    const float x = v[i] * up, y = v[i + 1] * up;
    const unsigned both = first[i / 2] = halves_of(x, y);
    second[i / 2] = rest_of(x, y, both, LOW_SCALE);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(first[0], first[1], first[2], first[3]);
  *reinterpret_cast<uint4*>(to + PLANE) = make_uint4(second[0], second[1], second[2], second[3]);
}

// Between pieces of the guarded compilation. PTXAS(13.0): it would work on several at a time, whose tests want
// registers, and spill; leave it out, peakgemm sass.
__device__ __forceinline__ void apart() {
  if (!ALIGNED) __syncwarp();
}

struct Loader {
  const float *a, *b;      // this lane's next elements
  long long lda, ldb;
  int row, piece, column;  // in the tile: A's row in its first piece, which piece of a row; B's column
  int rows;                // of A from there to the edge
  float v[PIECES][PIECE];

  __device__ __forceinline__ Loader(const float* A, const float* B, int M, int N, long long lda_, long long ldb_,
                                    Tile tile, int warp, int lane) {
    // Eight lanes that store at a time are two rows by four pieces: eight different groups of banks.
    row = warp * 32 + lane / 16 * 2 + lane / 4 % 2;
    piece = lane % 4 + lane / 8 % 2 * 4;
    column = warp * 32 + lane;
    lda = lda_;
    ldb = ldb_;
    a = A + (tile.m + row) * lda + k_of(piece, 0);
    b = B + (ALIGNED ? tile.n + column : min(tile.n + column, N - 1));  // past the edge the last column again
    rows = M - tile.m - row;
  }

  // Rows 4 s.. of A; zeros outside. K ends `left` elements from the chunk's first.
  __device__ __forceinline__ void fetch_a(int s, int left) {
#if ALIGNED
    *reinterpret_cast<float4*>(&v[s][0]) = __ldg(reinterpret_cast<const float4*>(a));
    *reinterpret_cast<float4*>(&v[s][4]) = __ldg(reinterpret_cast<const float4*>(a + k_of(0, 4)));
#else
    const int there = rows > 4 * s ? left - k_of(piece, 0) : 0;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) v[s][i] = k_of(0, i) < there ? __ldg(a + k_of(0, i)) : 0.f;
#endif
    a += 4 * lda;
  }

  // Piece s of B's column; zeros past the end of K.
  __device__ __forceinline__ void fetch_b(int s, int left) {
    const float* far = b + k_of(0, 4) * ldb;
#pragma unroll
    for (int i = 0; i < PIECE / 2; ++i, b += ldb, far += ldb) {
      v[s][i] = (ALIGNED ? 0 : k_of(s, i)) < left ? __ldg(b) : 0.f;
      v[s][i + 4] = (ALIGNED ? 0 : k_of(s, i + 4)) < left ? __ldg(far) : 0.f;
    }
    if (s % 4 == 3) b = far;
  }

  __device__ __forceinline__ void fetch_b(int left) {
#pragma unroll
    for (int s = 0; s < PIECES; ++s) fetch_b(s, left);
  }

  // A chunk whose part of B is under way: split it into a stage, and fetch B of the next one.
  __device__ __forceinline__ void split_chunk(char* to, float* scales, int left) {
    float top = 0.f;
#pragma unroll
    for (int s = 0; s < PIECES; ++s) top = fmaxf(top, largest(v[s]));
    const Scale scale(top);
    scales[BM + column] = scale.down;
#pragma unroll
    for (int s = 0; s < PIECES; ++s) {
      store_piece(to + B_PLANES + piece_at(column, s), v[s], scale.up);
      fetch_a(s, left);
      apart();
    }
    a += BK - PIECES * 4 * lda;
#pragma unroll
    for (int s = 0; s < PIECES; ++s) {
      float top = largest(v[s]);
      apart();
#pragma unroll
      for (int other = 1; other <= 8; other *= other == 2 ? 4 : 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
      const Scale scale(top);
      if (piece == 0) scales[row + 4 * s] = scale.down;
      store_piece(to + piece_at(row + 4 * s, piece), v[s], scale.up);
      fetch_b(s, left - BK);
      apart();
    }
  }
};
