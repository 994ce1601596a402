// C = alpha sum + beta C0. beta = 0 never reads C0, so NaN there cannot leak.
__device__ __forceinline__ float scaled(float sum, float alpha, float beta, const float* c0) {
  const float v = alpha * sum;
  return beta == 0.f ? v : fmaf(beta, *c0, v);
}

// Of WORDS sums at once, whose loads overlap: to those that are `wanted(w)`, *c0(w) is added.
template <int WORDS, class Wanted, class Address>
__device__ __forceinline__ void scale(float (&v)[WORDS], float alpha, float beta, Wanted wanted, Address c0) {
#pragma unroll
  for (int w = 0; w < WORDS; ++w) v[w] *= alpha;
  if (beta != 0.f) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
      if (wanted(w)) v[w] = fmaf(beta, *c0(w), v[w]);
  }
}

// One element in place. `scaled` would give the loop of rung 03 two instructions fewer than the profiler has counted.
__device__ __forceinline__ void store(float* c, float acc, float alpha, float beta) {
  *c = beta == 0.f ? alpha * acc : fmaf(beta, *c, alpha * acc);
}

// Four neighbours; the guarded compilation writes the first `valid` of them only.
__device__ __forceinline__ void store4(float* c, const float* acc, int valid, float alpha, float beta) {
#if ALIGNED
  float4 v = {alpha * acc[0], alpha * acc[1], alpha * acc[2], alpha * acc[3]};
  if (beta != 0.f) {
    const float4 old = *reinterpret_cast<const float4*>(c);
    v.x = fmaf(beta, old.x, v.x);
    v.y = fmaf(beta, old.y, v.y);
    v.z = fmaf(beta, old.z, v.z);
    v.w = fmaf(beta, old.w, v.w);
  }
  *reinterpret_cast<float4*>(c) = v;
#else
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < valid) store(c + j, acc[j], alpha, beta);
#endif
}
