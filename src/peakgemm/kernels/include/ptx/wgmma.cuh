// wgmma (sm_90a): a warpgroup multiplies 64 rows of A by 128 columns of B, both in shared memory, into registers.
//
// Thread t of the warpgroup holds rows 16 (t / 32) + t % 32 / 4 and the eighth below it, and of every eight columns
// two: acc[4 i + 2 r + c] is row r, column 8 i + 2 (t % 4) + c.
#include "include/ptx/wgmma_fences.cuh"
#include "include/split/narrow.cuh"

static_assert(ACCUMULATORS == 64, "the width that is written out below");

#define SIXTEEN(d, i)                                                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),       \
      "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]),            \
      "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define WGMMA(form, last)                                                                                         \
  asm volatile("{.reg .pred add; setp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128" form              \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                   \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                   \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                  \
               "%64, %65, add, 1, 1" last ";}"                                                                      \
               : SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)                                      \
               : "l"(a), "l"(b), "n"(ADD ? 1 : 0))

// 32 bytes of K: d = (ADD ? d : 0) + A B. Nothing that it reads or writes is touched before `wgmma_wait`.
template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b) {
#if SCHEME == FP16X3
  WGMMA("k16.f32.f16.f16", ", 0, 0");
#elif SCHEME == TF32X3
  WGMMA("k8.f32.tf32.tf32", "");
#else
  WGMMA("k16.f32.bf16.bf16", ", 0, 0");
#endif
}
