// Four consecutive floats of global memory. The aligned compilation reads them at once; the
// guarded one reads the first `valid` of them one by one and gives zero for the rest.
__device__ __forceinline__ float4 load4(const float* source, int valid) {
#if ALIGNED
  return *reinterpret_cast<const float4*>(source);
#else
  float4 v = {0.f, 0.f, 0.f, 0.f};
  if (valid > 0) v.x = source[0];
  if (valid > 1) v.y = source[1];
  if (valid > 2) v.z = source[2];
  if (valid > 3) v.w = source[3];
  return v;
#endif
}

// The same for row `row` of a matrix of `rows` rows: a row outside gives zeros.
__device__ __forceinline__ float4 load4(const float* source, int row, int rows, int valid) {
  return load4(source, row < rows ? valid : 0);
}
