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
