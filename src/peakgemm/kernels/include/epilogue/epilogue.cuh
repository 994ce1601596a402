// C = alpha acc + beta C for one element. beta = 0 never reads C, so NaN there cannot leak.
__device__ __forceinline__ void store(float* c, float acc, float alpha, float beta) {
  *c = beta == 0.f ? alpha * acc : fmaf(beta, *c, alpha * acc);
}

// The same for four neighbours; the guarded compilation writes the first `valid` of them only.
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
