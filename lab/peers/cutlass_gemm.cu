// CUTLASS's FP32 product without tensor cores, for `cutlass_gemm.py`: row-major C (M, N) = A (M, K) B (K, N).
//
// nvcc builds this file once for each of the four layouts: LAYOUT_A and LAYOUT_B are RowMajor or ColumnMajor, SM is
// the architecture's number.
// The tiles are those of CUTLASS's own generator (GenerateSM80_Simt_f32, GenerateSM50_Simt), by the entry that its
// profiler times, device::GemmUniversal, which takes batches and split-K in the same kernel.

#include "cutlass/cutlass.h"
#include "cutlass/gemm/device/gemm_universal.h"

namespace {

using LayoutA = cutlass::layout::LAYOUT_A;
using LayoutB = cutlass::layout::LAYOUT_B;
using LayoutC = cutlass::layout::RowMajor;
using Mode = cutlass::gemm::GemmUniversalMode;

// Strides in elements, from row (or column) to row and from product to product.
struct Operand {
  float* data;
  long long lead, batch;
};

struct Product {
  int m, n, k, batch, slices;
  Operand a, b, c;
};

// BM x BN x 8 a block, WM x WN a warp. Operands by single words (alignment 1): CUTLASS's SIMT loads have no other.
template <int BM, int BN, int WM, int WN, int STAGES>
struct Tile {
  using Arch = typename cutlass::platform::conditional<(STAGES > 2), cutlass::arch::Sm80, cutlass::arch::Sm50>::type;
  using Gemm = cutlass::gemm::device::GemmUniversal<
      float, LayoutA, float, LayoutB, float, LayoutC, float, cutlass::arch::OpClassSimt, Arch,
      cutlass::gemm::GemmShape<BM, BN, 8>, cutlass::gemm::GemmShape<WM, WN, 8>, cutlass::gemm::GemmShape<1, 1, 1>,
      cutlass::epilogue::thread::LinearCombination<float, 1, float, float>,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES, 1, 1>;

  static typename Gemm::Arguments arguments(const Product& p) {
    // In mode kGemm the count is that of the slices of K.
    const bool batched = p.batch > 1;
    return {batched ? Mode::kBatched : Mode::kGemm, {p.m, p.n, p.k}, batched ? p.batch : p.slices, {1.0f, 0.0f},
            p.a.data, p.b.data, p.c.data, p.c.data, p.a.batch, p.b.batch, p.c.batch, p.c.batch,
            p.a.lead, p.b.lead, p.c.lead, p.c.lead};
  }

  static long long workspace(const Product& p) {
    return static_cast<long long>(Gemm::get_workspace_size(arguments(p)));
  }

  static cutlass::Status run(const Product& p, void* workspace, cudaStream_t stream) {
    const auto chosen = arguments(p);
    const cutlass::Status status = Gemm::can_implement(chosen);
    return status == cutlass::Status::kSuccess ? Gemm()(chosen, workspace, stream) : status;
  }
};

struct Entry {
  const char* name;
  int bm, bn;
  long long (*workspace)(const Product&);
  cutlass::Status (*run)(const Product&, void*, cudaStream_t);
};

template <int BM, int BN, int WM, int WN, int STAGES>
constexpr Entry entry(const char* name) {
  using T = Tile<BM, BN, WM, WN, STAGES>;
  return {name, BM, BN, T::workspace, T::run};
}

#define TILE(BM, BN, WM, WN, STAGES) entry<BM, BN, WM, WN, STAGES>(#BM "x" #BN "x8, " #STAGES " stages")

constexpr Entry TILES[] = {
#if SM >= 80  // cp.async
    TILE(256, 128, 64, 64, 4), TILE(128, 256, 64, 64, 4), TILE(128, 128, 32, 64, 4), TILE(128, 64, 64, 32, 5),
    TILE(64, 128, 32, 64, 5),  TILE(64, 64, 32, 64, 5),   TILE(128, 32, 64, 32, 5),  TILE(32, 128, 32, 64, 5),
#endif
    TILE(128, 128, 32, 64, 2), TILE(64, 64, 32, 64, 2),
};
constexpr int COUNT = sizeof(TILES) / sizeof(TILES[0]);

}  // namespace

extern "C" {

int tile_count() { return COUNT; }

const char* tile_name(int tile) { return tile < 0 || tile >= COUNT ? "" : TILES[tile].name; }

// Blocks of a product that is not split.
long long tile_blocks(int tile, int m, int n) {
  if (tile < 0 || tile >= COUNT) return 0;
  const Entry& t = TILES[tile];
  return ((m + t.bm - 1LL) / t.bm) * ((n + t.bn - 1LL) / t.bn);
}

const char* status_name(int status) { return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(status)); }

// Bytes that a product split along K keeps on the device.
long long gemm_workspace(int tile, int m, int n, int k, int slices) {
  if (tile < 0 || tile >= COUNT) return 0;
  return TILES[tile].workspace({m, n, k, 1, slices, {nullptr, 1, 0}, {nullptr, 1, 0}, {nullptr, n, 0}});
}

// Enqueues the product on the stream; the answer is a cutlass::Status. `slices` of K where there is no batch.
int gemm(int tile, int m, int n, int k, int batch, int slices, float* a, long long lda, long long batch_a, float* b,
         long long ldb, long long batch_b, float* c, long long ldc, long long batch_c, void* workspace,
         cudaStream_t stream) {
  if (tile < 0 || tile >= COUNT) return static_cast<int>(cutlass::Status::kInvalid);
  // The kernel would take it for the address of its semaphores.
  if (batch == 1 && slices > 1 && !workspace) return static_cast<int>(cutlass::Status::kErrorWorkspaceNull);
  const Product p{m, n, k, batch, slices, {a, lda, batch_a}, {b, ldb, batch_b}, {c, ldc, batch_c}};
  return static_cast<int>(TILES[tile].run(p, workspace, stream));
}

}  // extern "C"
