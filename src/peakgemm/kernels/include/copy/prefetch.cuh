// What a kernel reads first is asked to be in L2 while the kernel before it still ends. No result can depend on that: L2 is
// where each sees what the other writes. Else memory rests from the last loads of one kernel to the first of the next.
constexpr int LINE = 32;  // floats
// Lines that an SM is asked for while it waits. Of many more the first loads wait instead.
constexpr int AHEAD = 256;

// Of ROWS (M or N) by STEPS of K of an operand, whose rows or (K_INNER) k-steps lie beside each other.
__device__ constexpr int lines_of(bool k_inner, int rows, int steps) {
  return k_inner ? rows * ((steps + LINE - 1) / LINE) : steps * ((rows + LINE - 1) / LINE);
}

// Whether this is one of an SM's first blocks, which ask for AHEAD lines together if each asks for `lines`; one block may
// ask for more.
__device__ __forceinline__ bool asks_ahead(int lines) {
  unsigned sms;
  asm("mov.u32 %0, %%nsmid;" : "=r"(sms));
  return blockIdx.x < sms * (lines < AHEAD ? AHEAD / lines : 1);
}

// Asks for it by COUNT threads: `rows` and `steps` are there from the element `first` on, `ld` is the distance of what
// does not lie beside each other. ANYWHERE: what does begins anywhere in a line; its last element is asked for, too.
template <int COUNT, bool K_INNER, int ROWS, int STEPS, bool ANYWHERE>
__device__ __forceinline__ void into_l2(const float* first, long long ld, int rows, int steps, int thread) {
#if __CUDA_ARCH__ >= 900
  constexpr int PIECES = lines_of(true, 1, K_INNER ? STEPS : ROWS) + ANYWHERE;
  const int high = min(rows, ROWS), deep = min(steps, STEPS), count = K_INNER ? high : deep, words = K_INNER ? deep : high;
#pragma unroll 1
  for (int i = thread; i < count * PIECES; i += COUNT) {
    const int line = i / PIECES, at = i % PIECES * LINE, here = ANYWHERE ? min(at, words - 1) : at;
    if (here >= 0 && here < words) asm volatile("prefetch.global.L2 [%0];" ::"l"(first + line * ld + here) : "memory");
  }
#endif
}
