// mbarriers (sm_80 and later): arrivals counted in shared memory, one phase after another.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Behind what this thread has stored, and behind the issue of its loads, not behind their coming. That is enough where threads
// write next, by stores or cp.async, which queue behind those loads. The copy engine does not queue: a warp that has read
// what it overwrites arrives when its loads have come (wide.cu; docs/notebook/05; `peakgemm sass check --arrivals`).
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}

// This thread arrives once its copies so far have landed.
__device__ __forceinline__ void mbarrier_arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// How long (ns) the hardware may put a waiting warp aside before it looks again: polling takes issue slots.
constexpr int SUSPEND = 10000000;

// Whether the phase of that parity is complete.
__device__ __forceinline__ bool mbarrier_is_complete(unsigned barrier, unsigned parity) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}

// Wait until the phase of that parity is complete.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  int done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2, %3; selp.b32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(barrier), "r"(parity), "n"(SUSPEND) : "memory");
#else
    done = mbarrier_is_complete(barrier, parity);
#endif
  } while (!done);
}

// As mbarrier_wait, and nothing else in the loop: where two warps share a scheduler, what the other form issues beside
// the wait costs 1 % at 8192 (wide.cu).
__device__ __forceinline__ void mbarrier_poll(unsigned barrier, unsigned parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "POLL:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra POLLED;\n"
      "bra POLL;\n"
      "POLLED:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
