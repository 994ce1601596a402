// Sixteen and eight bytes at once.
// PTXAS(13.0): of a float4 behind a branch whose other side stores words NVRTC makes four stores, each of which touches
// all sectors of its neighbours; store a float4 instead and count sectors by the simulator.
__device__ __forceinline__ void store_quad(float* to, float x, float y, float z, float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
__device__ __forceinline__ void store_pair(float* to, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
