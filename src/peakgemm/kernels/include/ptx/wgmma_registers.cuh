// wgmma (sm_90a) with A in registers: a warpgroup multiplies its 64 rows of A, four registers a thread and 32 bytes of K, by
// STRIP columns of B in shared memory.
//
// Thread t holds rows 16 (t / 32) + t % 32 / 4 and the eighth below it: of A k-steps 2 (t % 4) and the next one, and
// the eighth after those, a[row + 2 later]; of the result as in wgmma.cuh.
#include "include/split/narrow.cuh"

constexpr int STRIP = 64, STRIP_SUMS = STRIP / 2;
static_assert(SCHEME == FP16X3, "the format that is split in registers");

#define EIGHT(d, i)                                                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),       \
      "+f"(d[i + 7])

// d = (ADD ? d : 0) + A B. Nothing that it reads or writes is touched before `wgmma_wait`.
template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[STRIP_SUMS], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "{%32, %33, %34, %35}, %36, add, 1, 1, 0;}"
               : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0));
}
