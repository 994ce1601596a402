// Programmatic dependent launch (sm_90): blocks of this kernel start while the one before it in the stream still
// ends, and the next one's may start as soon as there is room. Nothing global is touched before the wait,
// after which all that the kernel before wrote is visible. A launch without the attribute waits for nothing.
__device__ __forceinline__ void previous_kernel_has_ended() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}
