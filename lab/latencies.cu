// What one SM does in how many cycles: a body for each probe of latencies.py, which defines the body's name as a macro.
//
// A body runs `turns` times between two looks at the SM's clock. Longer runs less shorter ones leave the turns alone.
#include "include/ptx/cp_async.cuh"
#include "include/ptx/bulk.cuh"
#include "include/ptx/mbarrier.cuh"
#if defined(WGMMA_CHAIN)
#define SCHEME FP16X3
#define BN 128
#include "include/split/narrow.cuh"
#include "include/ptx/wgmma_fences.cuh"
#include "include/ptx/wgmma.cuh"
#endif

#ifndef THREADS
#define THREADS 512  // at most, of a block
#endif
#ifndef GRID
#define GRID 0
#endif
#define PRAGMA(text) _Pragma(#text)
#define TIMES(n) PRAGMA(unroll n) for (int step = 0; step < n; ++step)
#if WIDTH == 4
#define VECTOR ".v4.u32 {%0, %1, %2, %3}"
#elif WIDTH == 2
#define VECTOR ".v2.u32 {%0, %1}"
#else
#define VECTOR ".u32 %0"
#endif
#if defined(TENSOR_COPY)
#define TENSOR_MAPS , const __grid_constant__ TensorMap map
#else
#define TENSOR_MAPS
#endif

__device__ __forceinline__ long long now() {
  long long cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles) : : "memory");
  return cycles;
}
__device__ __forceinline__ void load_shared(unsigned (&r)[4], unsigned from) {
  asm volatile("ld.volatile.shared" VECTOR ", [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void store_shared_words(unsigned to, const unsigned (&r)[4]) {
#if WIDTH == 4
  asm volatile("st.volatile.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
#elif WIDTH == 2
  asm volatile("st.volatile.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(r[0]), "r"(r[1]) : "memory");
#else
  asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(to), "r"(r[0]) : "memory");
#endif
}
#if CACHED
#define GLOBAL_LOAD "ld.global"
#else
#define GLOBAL_LOAD "ld.global.cg"
#endif
__device__ __forceinline__ void load_global(unsigned (&r)[4], const char* from) {
  asm volatile(GLOBAL_LOAD VECTOR ", [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async(unsigned to, const char* from) {
#if WIDTH == 4 && !CACHED
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#elif WIDTH == 4
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#endif
}

// clocks: begin and end of each warp; of QUEUE and BLOCKS what they note. `stride`: bytes from lane to lane (of chases
// and streams: see there); `range`: bytes of data that are touched, a power of two.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
probe(unsigned* sink, char* data, int turns, int stride, long long range, long long* clocks TENSOR_MAPS) {
  extern __shared__ __align__(1024) char room[];
  const unsigned base = shared_address(room), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  unsigned bits = 0;
  (void)base, (void)lane, (void)warp, (void)warps;

#if defined(FILL)
  // A chain through `range` bytes: each `stride` bytes the address of the next place.
  for (long long i = blockIdx.x * 1024ll + threadIdx.x; i < range / stride; i += 1024ll * gridDim.x)
    *reinterpret_cast<char**>(data + i * stride) = data + (i + 1) % (range / stride) * stride;
#elif defined(BLOCKS)
  // When this block began and ended, and where: the next block of an SM begins some cycles later.
  const long long start = now();
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  __syncthreads();
  while (now() - start < turns) {}
  __syncthreads();
  if (threadIdx.x == 0) {
    clocks[3 * blockIdx.x] = sm;
    clocks[3 * blockIdx.x + 1] = start;
    clocks[3 * blockIdx.x + 2] = now();
  }
#else

  // Shared memory that points to itself, so that a chain stays where it is.
  for (unsigned i = threadIdx.x; i < 8192; i += blockDim.x) reinterpret_cast<unsigned*>(room)[i] = base + 4 * i;
#if defined(LDS_CHASE) || defined(LDS_RATE) || defined(STS_RATE) || defined(QUEUE) || defined(STS_LDS)
  unsigned at = base + lane * stride;
  asm volatile("" : "+r"(at));
#endif
#if defined(LDG_CHASE)
  const char* place = data + (blockIdx.x * 977ll + turns) % (range / stride) * stride;  // another start for each run
#endif
#if defined(LDG_RATE) || defined(QUEUE)
  const char* place = data + lane * stride;  // moves by a line each turn, lest loads leave the loop
#endif
#if defined(STREAM) || defined(COPY_RATE) || defined(STREAM_STORE)
  const unsigned ahead = 16 * threadIdx.x;
  long long offset = blockIdx.x * static_cast<long long>(GRID ? 128 * blockDim.x : stride) % range;
  const long long advance = 128ll * blockDim.x * (GRID ? gridDim.x : 1);  // GRID: blocks take chunks in turn
  (void)ahead, (void)advance;
#endif
#if defined(COPY_CHAIN)
  const char* const place = data + lane * stride;
#endif
#if defined(MBARRIER) || defined(PING_PONG) || defined(BULK) || defined(TENSOR_COPY)
  const unsigned barriers = base + 64 * 1024;
  if (threadIdx.x < 8) {
#if defined(MBARRIER)
    mbarrier_init(barriers + 8 * threadIdx.x, blockDim.x);
#else
    mbarrier_init(barriers + 8 * threadIdx.x, 1);
#endif
    fence_for_copies();
  }
  unsigned parity = 0;
  (void)parity;
#endif
#if defined(FFMA_CHAIN) || defined(FFMA_RATE) || defined(CODE)
  float x[16], a = __uint_as_float(base), b = __uint_as_float(lane);
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i + a;
#endif
#if defined(HMMA_CHAIN) || defined(HMMA_RATE)
  float d[8][4] = {};
  unsigned a[4] = {lane, lane, lane, lane}, b[2] = {lane, lane};
#endif
#if defined(WGMMA_CHAIN)
  float d[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) d[i] = 0;
  const unsigned long long left = matrix_descriptor(base), right = matrix_descriptor(base + 16384);
#endif
#if defined(QUEUE)
  long long looks[QUEUE_LENGTH + 1];
#endif
#if defined(STS_RATE) || defined(QUEUE)
  unsigned words[4];  // four registers that stay
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(data));
#endif
  __syncthreads();
  const long long began = now();
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {

#if defined(FFMA_CHAIN)
    TIMES(64) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[0]) : "f"(a), "f"(b));
#elif defined(FFMA_RATE)
    TIMES(64) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[step % 16]) : "f"(a), "f"(b));
#elif defined(CODE)
    TIMES(CODE) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[step % 16]) : "f"(a), "f"(b));
#elif defined(LDS_CHASE)
    TIMES(32) {
      unsigned r[4];
      load_shared(r, at);
      at = r[0];
    }
#elif defined(LDS_RATE)
    unsigned r[16][4];
    TIMES(16) load_shared(r[step], at + 16 * 32 * (step % 4));
    TIMES(16) bits ^= WIDTH == 4 ? r[step][0] ^ r[step][1] ^ r[step][2] ^ r[step][3]
                     : WIDTH == 2 ? r[step][0] ^ r[step][1] : r[step][0];
#elif defined(STS_RATE)
    TIMES(16) store_shared_words(at + 16 * 32 * (step % 4), words);
#elif defined(STS_LDS)
    TIMES(16) {
      unsigned r[4] = {at, at, at, at};
      store_shared_words(at, r);
      load_shared(r, at);
      at = r[0];
    }
#elif defined(LDG_CHASE)
    TIMES(16) asm volatile(GLOBAL_LOAD ".u64 %0, [%0];" : "+l"(place) : : "memory");
#elif defined(LDG_RATE)
    unsigned r[8][4];
    TIMES(8) load_global(r[step], place + 16 * step);
    place = data + lane * stride + (turn & 1) * 256;
    TIMES(8) bits ^= WIDTH == 4 ? r[step][0] ^ r[step][1] ^ r[step][2] ^ r[step][3] : r[step][0];
#elif defined(STREAM)
    unsigned r[8][4];
    TIMES(8) load_global(r[step], data + offset + ahead + step * 16 * blockDim.x);
    TIMES(8) bits ^= r[step][0] ^ r[step][1] ^ r[step][2] ^ r[step][3];
    offset = (offset + advance) & (range - 1);
#elif defined(STREAM_STORE)
    TIMES(8) asm volatile("st.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(data + offset + ahead + step * 16 * blockDim.x), "r"(lane) : "memory");
    offset = (offset + advance) & (range - 1);
#elif defined(COPY_CHAIN)
    TIMES(8) {
      copy_async(base + lane * 4 * WIDTH, place);
      copies_commit();
      copies_wait<0>();
    }
#elif defined(COPY_RATE)
    TIMES(8) copy_async(base + 4 * WIDTH * (threadIdx.x + step * blockDim.x) % 65536,
                        data + offset + 4 * WIDTH * (threadIdx.x + step * blockDim.x));
    copies_commit();
    copies_wait<1>();
    offset = (offset + 32 * WIDTH * blockDim.x) & (range - 1);
#elif defined(BULK) || defined(TENSOR_COPY)
    // IN_FLIGHT copies of `stride` bytes, each awaited before its place is filled anew.
    if (threadIdx.x == 0) {
      TIMES(IN_FLIGHT) {
        if (turn) mbarrier_poll(barriers + 8 * step, parity ^ 1);
        bulk_expect(barriers + 8 * step, stride);
#if defined(BULK)
        bulk_load(base + 16384 * step % 65536, data + ((blockIdx.x * 65536ll + (turn * IN_FLIGHT + step) * static_cast<long long>(stride)) & (range - 1)), stride, barriers + 8 * step);
#else
        tensor_load(base + 16384 * step % 65536, map, (turn * IN_FLIGHT + step) * 128 % 4096, 0, barriers + 8 * step);
#endif
      }
      parity ^= 1;
    }
#elif defined(BAR)
    TIMES(16) asm volatile("bar.sync 0;" ::: "memory");
#elif defined(MBARRIER)
    TIMES(8) {
      mbarrier_arrive(barriers);
      mbarrier_poll(barriers, parity);
      parity ^= 1;
    }
#elif defined(PING_PONG)
    // Two warps: one arrives when the other one has.
    TIMES(8) {
      if (warp == 0) {
        if (lane == 0) mbarrier_arrive(barriers);
        __syncwarp();
        mbarrier_poll(barriers + 8, parity);
      } else {
        mbarrier_poll(barriers, parity);
        if (lane == 0) mbarrier_arrive(barriers + 8);
        __syncwarp();
      }
      parity ^= 1;
    }
#elif defined(HMMA_CHAIN) || defined(HMMA_RATE)
#if defined(HMMA_CHAIN)
#define SUM d[0]
#else
#define SUM d[step % 8]
#endif
    TIMES(16)
#if WIDTH == 1
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
                   : "+f"(SUM[0]), "+f"(SUM[1]), "+f"(SUM[2]), "+f"(SUM[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(WGMMA_CHAIN)
    wgmma_fence();
    TIMES(PER_GROUP) wgmma<true>(d, left, right);
    wgmma_commit();
    wgmma_wait<0>();
#elif defined(LDSM)
    unsigned r[4][4];
    TIMES(4) asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                          : "=r"(r[step][0]), "=r"(r[step][1]), "=r"(r[step][2]), "=r"(r[step][3]) : "r"(base + lane * 16 + 512 * step) : "memory");
    TIMES(4) bits ^= r[step][0] ^ r[step][1] ^ r[step][2] ^ r[step][3];
#elif defined(QUEUE)
    unsigned r[QUEUE_LENGTH][4];
    looks[0] = now();
    TIMES(QUEUE_LENGTH) {
#if QUEUE == 0
      load_shared(r[step], at + 512 * (step % 4));
#elif QUEUE == 1
      store_shared_words(at + 512 * (step % 4), words);
      r[step][0] = r[step][1] = r[step][2] = r[step][3] = 0;
#elif QUEUE == 2
      load_global(r[step], place + 512 * step);
#else
      copy_async(base + 16 * lane + 512 * step, place + 512 * step);
      r[step][0] = r[step][1] = r[step][2] = r[step][3] = 0;
#endif
      looks[step + 1] = now();
    }
    TIMES(QUEUE_LENGTH) bits ^= WIDTH == 4 ? r[step][0] ^ r[step][1] ^ r[step][2] ^ r[step][3] : r[step][0];
#if QUEUE == 3
    copies_wait_all();
#endif
    __syncthreads();
#endif
  }
#if defined(BULK) || defined(TENSOR_COPY)
  if (threadIdx.x == 0) TIMES(IN_FLIGHT) mbarrier_poll(barriers + 8 * step, parity ^ 1);
#endif
#if defined(COPY_RATE)
  copies_wait_all();
#endif
#if defined(LDS_CHASE) || defined(STS_LDS)
  bits ^= at;
#endif
#if defined(LDG_CHASE)
  bits ^= static_cast<unsigned>(reinterpret_cast<unsigned long long>(place));
#endif
#if defined(FFMA_CHAIN) || defined(FFMA_RATE) || defined(CODE)
#pragma unroll
  for (int i = 0; i < 16; ++i) bits ^= __float_as_uint(x[i]);
#endif
#if defined(HMMA_CHAIN) || defined(HMMA_RATE)
#pragma unroll
  for (int i = 0; i < 8; ++i) bits ^= __float_as_uint(d[i][0] + d[i][1] + d[i][2] + d[i][3]);
#endif
#if defined(WGMMA_CHAIN)
#pragma unroll
  for (int i = 0; i < 64; ++i) bits ^= __float_as_uint(d[i]);
#endif
  if (bits == 0x12345678u) sink[threadIdx.x] = bits;  // behind it the results are there
  const long long ended = now();
#if defined(QUEUE)
  if (lane == 0)
    for (int i = 0; i <= QUEUE_LENGTH; ++i) clocks[(blockIdx.x * warps + warp) * (QUEUE_LENGTH + 1) + i] = looks[i];
#else
  if (lane == 0) {
    clocks[2 * (blockIdx.x * warps + warp)] = began;
    clocks[2 * (blockIdx.x * warps + warp) + 1] = ended;
  }
#endif
#endif
}
