// acc (TM x TN) += a (TM) b (TN), column by column, up one and down the next.
//
// An FFMA reads three registers from two banks (register number modulo 2), one read a bank and
// cycle, unless the reuse cache still holds an operand. In this order b[j] is reused down a column
// and a[i] across the turn (docs/notebook/01).
__device__ __forceinline__ void outer_product(float (&acc)[TM][TN], const float (&a)[TM], const float (&b)[TN]) {
#pragma unroll
  for (int j = 0; j < TN; ++j)
#pragma unroll
    for (int step = 0; step < TM; ++step) {
      const int i = j % 2 ? TM - 1 - step : step;
      acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
    }
}

// acc (TM x TN) += a (TM) b (TN), row by row, along one and back along the next; REVERSED starts at the other end.
//
// a[i] is reused along a row and b[j] across the turn. Where the parity of acc[i][j]'s register is not that of
// b[j]'s, no FFMA waits for a register bank.
template <bool REVERSED>
__device__ __forceinline__ void outer_product_rows(float (&acc)[TM][TN], const float (&a)[TM], const float (&b)[TN]) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int step = 0; step < TN; ++step) {
      const int j = (i + REVERSED) % 2 ? TN - 1 - step : step;
      acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
    }
}
