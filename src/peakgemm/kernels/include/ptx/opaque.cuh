// `x`, of which the compiler then knows nothing: what follows from it is computed again instead of kept in registers.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ __forceinline__ long long opaque(long long x) {
  asm volatile("" : "+l"(x));
  return x;
}
