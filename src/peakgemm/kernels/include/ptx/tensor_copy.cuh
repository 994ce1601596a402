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
