// cp.async (sm_80 and later): global to shared memory without passing through registers.
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Four bytes; where `valid` is false nothing is read and zero is written.
__device__ __forceinline__ void copy4_or_zero(unsigned to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

// Four bytes, or nothing at all. The predicate is inside the assembly so that no branch cuts the
// main loop into blocks that the scheduler cannot look across.
__device__ __forceinline__ void copy4_if(bool wanted, unsigned to, const float* from) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %2, 0;\n"
      "@p cp.async.ca.shared.global [%0], [%1], 4;}" ::"r"(to), "l"(from), "r"(static_cast<int>(wanted)) : "memory");
}

// Sixteen bytes past L1, or nothing: both addresses must be multiples of 16.
__device__ __forceinline__ void copy16_if(bool wanted, unsigned to, const float* from) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %2, 0;\n"
      "@p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(to), "l"(from), "r"(static_cast<int>(wanted)) : "memory");
}

// Sixteen bytes, past L1 or by way of it, of which the first `valid` floats are read and the rest are zero.
template <bool VIA_L1 = false>
__device__ __forceinline__ void copy16_or_zero(unsigned to, const float* from, int valid) {
  const int bytes = 4 * max(0, min(valid, 4));
  if constexpr (VIA_L1)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most N of the committed groups of this thread are still under way.
template <int N>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Until all copies of this thread have landed.
__device__ __forceinline__ void copies_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
