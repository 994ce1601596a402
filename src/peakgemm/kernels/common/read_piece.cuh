// Elements of a row from `from` on, as many as a piece has; zeros from `left` on.
template <bool K_INNER, int WIDTH>
__device__ __forceinline__ void read_piece(float (&v)[PIECE], const float* from, long long col, int left) {
  if (K_INNER && WIDTH == 4 && left >= PIECE) {
#pragma unroll
    for (int i = 0; i < PIECE; i += 4)
      *reinterpret_cast<float4*>(&v[i]) = __ldg(reinterpret_cast<const float4*>(from + i));
  } else if (left >= PIECE) {
#pragma unroll
    for (int i = 0; i < PIECE; ++i) v[i] = __ldg(from + (K_INNER ? i : i * col));
  } else {
#pragma unroll
    for (int i = 0; i < PIECE; ++i) v[i] = i < left ? __ldg(from + (K_INNER ? i : i * col)) : 0.f;
  }
}
