// Fragments are made of float4: element i of a thread's fragment is element i % 4 of group i / 4,
// and the groups of a thread lie `threads` float4 apart, so that neighbouring lanes read
// neighbouring float4 whatever the thread tile.
__host__ __device__ constexpr int quad(int i, int threads) { return i / 4 * threads * 4 + i % 4; }

// f(i, j) for each of a thread's TM x TN results, row by row.
template <class F>
__device__ __forceinline__ void each_result(F f) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) f(i, j);
}

// f(i, j) for the first of every four neighbours in a row.
template <class F>
__device__ __forceinline__ void each_quad(F f) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; j += 4) f(i, j);
}

// A thread's fragment of one k-step, by float4; `from` is its first element.
template <int COUNT>
__device__ __forceinline__ void load_fragment(float (&to)[COUNT], const float* from, int threads) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4)
    *reinterpret_cast<float4*>(&to[i]) = *reinterpret_cast<const float4*>(from + quad(i, threads));
}

// One, two or four neighbouring words by one instruction.
template <int COUNT>
__device__ __forceinline__ void load_words(float* to, const float* from) {
  if constexpr (COUNT == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (COUNT == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    *to = *from;
  }
}
