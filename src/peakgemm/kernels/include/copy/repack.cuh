// Operands repacked while the product runs, by warps that do nothing else: K rows of M or N floats, each row a
// multiple of 16 bytes with zeros at its end, in units of 32 columns and 64 k-steps, in the order in
// which the product asks for them.
//
// Units are dealt by a counter, not by a block's number: each unit that somebody waits for is some running warp's, however
// few blocks the GPU runs at once. A chunk, 64 k-steps of both operands, has a counter of its units that are done. Beside
// warps that multiply there are few slots to issue in: words come by cp.async, a unit ahead, and leave by 16 bytes.
#include "include/ptx/cp_async.cuh"
#include "include/ptx/opaque.cuh"
#include "include/scheduler/gemm.cuh"

constexpr int UNIT = 32, CHUNK = 64;             // columns, k-steps
constexpr int COLUMN = CHUNK + 4, ROW = UNIT;    // words from column to column where K is contiguous, else from row to row
constexpr int UNIT_WORDS = UNIT * COLUMN;

// What is repacked (kernels/ffma/repack.py): in the workspace counters, one that deals units and one a chunk; A and B,
// each where it is repacked at all; flags of accumulators handed on; partial sums. Counters and flags are zero at
// first.
struct Repack {
  long long a, b, sums;      // where they begin, in floats
  Divisor each;              // by units of a chunk
  int units_a, units, all;   // of a chunk: of A, and of both (0: none is laid out); of all chunks
  int along_k_a, along_k_b;  // as the operand lies, K is contiguous: 2 where its rows begin at 16 bytes, else 1
  int none;                  // 0
  int flags;                 // as many
};

// One unit: its operand, and where it lies in that.
struct Unit {
  bool of_a;
  int chunk, x, k;

  __device__ __forceinline__ Unit(const Repack& repack, int number) {
    chunk = over(number, repack.each);
    x = number - chunk * repack.units;
    of_a = x < repack.units_a;
    x = (of_a ? x : x - repack.units_a) * UNIT;
    k = chunk * CHUNK;
  }
};

// One more of `done`, after all that this warp has written; the copy engine sees it, too.
__device__ __forceinline__ void unit_is_done(unsigned* done) {
  asm volatile("fence.proxy.async;" ::: "memory");
  __threadfence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(done) : "memory");
}

// Until `units` are done; then the copy engine sees what they are.
__device__ __forceinline__ void wait_for_units(const unsigned* done, unsigned units) {
  unsigned there;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(done) : "memory");
  } while (there != units);
  asm volatile("fence.proxy.async;" ::: "memory");
}

// PTXAS(13.0): of copy4_if(true, ...) it makes other code, with the same main loop, but not measured.
__device__ __forceinline__ void copy4(unsigned to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Ask for a unit's words: element (x, k) at from[x ld + k] or, where K is not contiguous, from[k ld + x].
__device__ __forceinline__ void ask_for(const Unit& unit, const float* A, const float* B, const Gemm& g, const Repack& repack,
                                        unsigned words) {
  const int lane = opaque(int(threadIdx.x)) % 32, along_k = unit.of_a ? repack.along_k_a : repack.along_k_b;
  const int size = unit.of_a ? g.M : g.N;
  const long long ld = unit.of_a ? g.lda : g.ldb;
  const bool inside = unit.x + UNIT <= size && unit.k + CHUNK <= g.K;
  const float* from = unit.of_a ? A : B;
  if (along_k) {
    from += unit.x * ld + unit.k;
    if (inside && along_k == 2) {
      from += lane / 16 * ld + lane % 16 * 4;
      words += 4 * (lane / 16 * COLUMN + lane % 16 * 4);
#pragma unroll 4
      for (int i = 0; i < UNIT; i += 2) {
        copy16_if(true, words + 4 * i * COLUMN, from);
        from += 2 * ld;
      }
    } else if (inside) {
      from += lane;
      words += 4 * lane;
#pragma unroll 4
      for (int i = 0; i < UNIT; ++i) {
        copy4(words + 4 * i * COLUMN, from);
        copy4(words + 4 * i * COLUMN + 128, from + 32);
        from += ld;
      }
    } else {
      from += lane;
      words += 4 * lane;
#pragma unroll 1
      for (int i = unit.x; i < unit.x + UNIT; ++i) {
        copy4_or_zero(words, from, i < size && unit.k + lane < g.K);
        copy4_or_zero(words + 128, from + 32, i < size && unit.k + 32 + lane < g.K);
        from += ld;
        words += 4 * COLUMN;
      }
    }
  } else {
    from += unit.k * ld + unit.x + lane;
    words += 4 * lane;
    if (inside) {
#pragma unroll 4
      for (int i = 0; i < CHUNK; ++i) {
        copy4(words + 4 * i * ROW, from);
        from += ld;
      }
    } else {
#pragma unroll 1
      for (int i = unit.k; i < unit.k + CHUNK; ++i) {
        copy4_or_zero(words, from, unit.x + lane < size && i < g.K);
        from += ld;
        words += 4 * ROW;
      }
    }
  }
}

// Lay out a unit whose words are there: lanes write four k-steps, 32 columns of each. Where K is contiguous four of them
// meet in a bank, which is nothing beside what the product reads.
__device__ __forceinline__ void repack_unit(const Unit& unit, float* workspace, const Gemm& g, const Repack& repack, unsigned words) {
  const int lane = opaque(int(threadIdx.x)) % 32, along_k = unit.of_a ? repack.along_k_a : repack.along_k_b;
  const int pitch = ((unit.of_a ? g.M : g.N) + 3) / 4 * 4, x = lane % 8 * 4;
  if (unit.x + x >= pitch) return;
  int left = g.K - unit.k - lane / 8;
  float* to = workspace + (unit.of_a ? repack.a : repack.b) + static_cast<long long>(unit.k + lane / 8) * pitch + unit.x + x;
  words += 4 * (along_k ? x * COLUMN + lane / 8 : lane / 8 * ROW + x);
  const int step = 4 * (along_k ? 4 : 4 * ROW);
#pragma unroll 2
  for (int i = 0; i < CHUNK; i += 4) {
    float v[4];
    if (along_k) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v[j]) : "r"(words + 4 * j * COLUMN) : "memory");
    } else {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(words) : "memory");
    }
    if (i < left)
      asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                   ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
    to += 4LL * pitch;
    words += step;
  }
}

// Units of all chunks but the first, until none is left, by one warp of several.
__device__ __forceinline__ void repack_units(const float* A, const float* B, float* workspace, const Gemm& g,
                                              const Repack& repack, unsigned words) {
  unsigned* const counters = reinterpret_cast<unsigned*>(workspace);
  auto deal = [&] {
    int unit = 0;
    if (opaque(int(threadIdx.x)) % 32 == 0) unit = atomicAdd(counters, 1u);
    return __shfl_sync(~0u, unit, 0) + repack.units;
  };
  int number = repack.units < repack.all ? deal() : repack.all;
  unsigned now = words, next = words + 4 * UNIT_WORDS;
  if (number < repack.all) ask_for(Unit(repack, number), A, B, g, repack, now);
  copies_commit();
#pragma unroll 1
  while (number < repack.all) {
    const int after = deal();
    if (after < repack.all) ask_for(Unit(repack, after), A, B, g, repack, next);
    copies_commit();
    copies_wait<1>();
    __syncwarp();
    const Unit unit(repack, number);
    repack_unit(unit, workspace, g, repack, now);
    unit_is_done(counters + 1 + unit.chunk);
    number = after;
    const unsigned other = now;
    now = next;
    next = other;
  }
}
