// FP32 values as sums of narrower floats, each rounded to nearest; without a header.
#define FP16X3 0
#define TF32X3 1
#define BF16X9 2

__device__ __forceinline__ float of_half(unsigned bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(bits)));
  return x;
}

// Two at once, the first in the lower half.
__device__ __forceinline__ unsigned halves_of(float x, float y) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  return both;
}

// What `both`, the halves of x and y, leave of them, `up` times.
__device__ __forceinline__ unsigned rest_of(float x, float y, unsigned both, float up) {
  return halves_of((x - of_half(both & 0xffffu)) * up, (y - of_half(both >> 16)) * up);
}

__device__ __forceinline__ unsigned bf16_of(float x) {
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}

__device__ __forceinline__ unsigned tf32_of(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits & 0xffffe000u;
}

// 16 bytes of each plane.
struct Planes {
  unsigned words[3][4];

  // Elements i and i + 1, i even.
  __device__ __forceinline__ void set(int i, float x, float y) {
    if (SCHEME == FP16X3) {
      const unsigned both = words[0][i / 2] = halves_of(x, y);
      words[1][i / 2] = rest_of(x, y, both, 2048.f);
    } else if (SCHEME == TF32X3) {
      set_tf32(i, x);
      set_tf32(i + 1, y);
    } else {
#pragma unroll
      for (int plane = 0; plane < 3; ++plane) {
        const unsigned first = bf16_of(x), second = bf16_of(y);
        words[plane][i / 2] = first | second << 16;
        x -= __uint_as_float(first << 16);
        y -= __uint_as_float(second << 16);
      }
    }
  }

  __device__ __forceinline__ void set_tf32(int i, float x) {
    const unsigned high = tf32_of(x);
    words[0][i] = high;
    words[1][i] = tf32_of(x - __uint_as_float(high));
  }

  __device__ __forceinline__ uint4 piece(int plane) const {
    return make_uint4(words[plane][0], words[plane][1], words[plane][2], words[plane][3]);
  }
};
