// Programmatic dependent launch (sm_90): blocks of this kernel start while the one before it in the stream still
// ends, and the next one's may start as soon as there is room. Nothing global is read or written before the wait,
// after which all that the kernel before wrote is visible; what can be computed without it is, and operands are asked to
// be in L2 (prefetch.cuh). Some thread of every launch waits, or a third kernel could start before the first has ended.
// Without the attribute nobody waits.
__device__ __forceinline__ void next_kernel_may_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void previous_kernel_has_ended() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}
