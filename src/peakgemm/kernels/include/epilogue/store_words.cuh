// A thread's results to C word by word, of which the first is at row m and column n. INSIDE: the tile passes no edge.
#include "include/epilogue/epilogue.cuh"
#include "include/mma/fragment.cuh"

template <bool INSIDE>
__device__ __forceinline__ void store_words(const float (&acc)[TM][TN], float* C, long long ldc, int m, int n, int M, int N,
                                            float alpha, float beta) {
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int row = m + quad(i, 8);
    if (!INSIDE && row >= M) continue;
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int column = n + quad(j, 4);
      if (INSIDE || column < N) store(C + row * ldc + column, acc[i][j], alpha, beta);
    }
  }
}
