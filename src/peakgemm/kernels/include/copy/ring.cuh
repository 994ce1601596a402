// A ring of STAGES stages between threads that copy and threads that compute, each with two mbarriers: at `full` copies
// arrive, at `empty` readers.
#include "include/ptx/cp_async.cuh"
#include "include/ptx/mbarrier.cuh"

// BYTES: of a stage. Of the stage in turn a main loop of FFMAs has its addresses, which take no instruction; INDEXED, kernels of
// tensor cores, which have none to spare of the registers, have its number.
template <int BYTES, bool INDEXED = false>
struct Ring {
  unsigned turn;        // the full barrier of the stage in turn, or its number,
  unsigned offset = 0;  // bytes from the first stage to it,
  unsigned parity = 0;  // and the phase that a reader waits for
  unsigned first, end;  // the full barriers; behind them the first empty one

  // `barriers`: 2 STAGES of them.
  __device__ __forceinline__ explicit Ring(const unsigned long long* barriers)
      : turn(INDEXED ? 0 : shared_address(barriers)), first(shared_address(barriers)), end(first + 8 * STAGES) {}

  // So many arrivals fill a stage, and empty one. All threads call; a barrier of them must follow.
  __device__ __forceinline__ void init(int copies, int readers) const {
    if (threadIdx.x < STAGES) {
      mbarrier_init(first + 8 * threadIdx.x, copies);
      mbarrier_init(end + 8 * threadIdx.x, readers);
    }
  }

  __device__ __forceinline__ void step() {
    if (INDEXED) {
      if (++turn == STAGES) turn = 0, parity ^= 1;
      return;
    }
    offset += BYTES;
    turn += 8;
    if (turn == end) offset = 0, turn = first, parity ^= 1;
  }

  __device__ __forceinline__ void step(int stages) {
    static_assert(!INDEXED, "by one at a time");
    offset += stages * BYTES;
    turn += stages * 8;
    const bool wraps = turn >= end;
    parity ^= wraps;
    if (wraps) offset -= STAGES * BYTES, turn -= STAGES * 8;
  }

  __device__ __forceinline__ unsigned at() const { return INDEXED ? turn * BYTES : offset; }
  __device__ __forceinline__ unsigned full() const { return INDEXED ? first + 8 * turn : turn; }
  __device__ __forceinline__ unsigned empty() const { return INDEXED ? end + 8 * turn : turn + 8 * STAGES; }
  __device__ __forceinline__ void wait_full() const { mbarrier_wait(full(), parity); }
  __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty(), parity ^ 1); }
};
