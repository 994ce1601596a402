// mma.sync (sm_80 and later): a warp multiplies 16 rows of A by 8 columns of B, 32 bytes of K, in registers.
//
// Lane t holds rows t / 4 and t / 4 + 8 and columns 2 (t % 4) and the next one: d[2 r + c].
#include "include/split/narrow.cuh"

// Four 8 x 8 matrices of 16-bit elements (or 8 x 4 of 32-bit ones): lane t gives the address of row t % 8 of
// matrix t / 8, and register i is matrix i's row t / 4, bytes 4 (t % 4) to 4 (t % 4) + 3.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

#define MMA(form)                                                                                                 \
  asm("mma.sync.aligned." form " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// d += A B.
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if SCHEME == FP16X3
  MMA("m16n8k16.row.col.f32.f16.f16.f32");
#elif SCHEME == TF32X3
  MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
#else
  MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
#endif
}
