// Bulk copies between global and shared memory (sm_90): one thread asks, a whole block of bytes moves.
// Addresses and sizes are multiples of 16.

// To shared memory; the barrier counts the bytes.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Arrive at a barrier, whose phase then also waits for that many bytes of bulk copies.
__device__ __forceinline__ void bulk_expect(unsigned barrier, int bytes) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;}" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Ordinary stores to shared memory before it are seen by the tensor cores after it.
__device__ __forceinline__ void fence_for_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Tensor copies (sm_90): one thread names a corner, the copy engine moves a box of a matrix to shared memory. What
// lies outside the matrix arrives as zeros, so nobody tests bounds.
//
// A map, 128 bytes that the driver encodes (runtime/tensor_map.py), holds address, sizes, pitch and box.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// The box whose first element is (row, column); the barrier counts its bytes.
__device__ __forceinline__ void tensor_load(unsigned to, const TensorMap& map, int row, int column, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// The copy engine sees what this thread has written to shared memory, barriers that it has set up included.
__device__ __forceinline__ void fence_for_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }
