// Sixteen and eight bytes at once. Of a float4 behind a branch whose other side stores words NVRTC makes four stores, each
// of which touches all sectors of its neighbours: 1024 instead of 256 for 64 x 32 results, by the simulator's count.
__device__ __forceinline__ void store_quad(float* to, float x, float y, float z, float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
__device__ __forceinline__ void store_pair(float* to, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
