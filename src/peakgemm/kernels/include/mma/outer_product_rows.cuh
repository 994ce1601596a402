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
