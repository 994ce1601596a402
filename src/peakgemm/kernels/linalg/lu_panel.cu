// LU with partial pivoting of a panel of up to COLUMNS columns, by one cluster: LAPACK's getf2, its pivots included.
//
// Idea: a thread has ROWS rows of the panel in registers, and rows stay where they are: a thread knows at what position
// in the matrix its row is by now, and stores it there at the end. For a column each block finds its candidate, the
// largest element, and sends that row to all blocks of the cluster; then all know the pivot's row, and eliminate.
// The column that is eliminated is always v[0], for what is left of a row moves to the left as it is updated, and the
// multiplier goes to its end: so one piece of code serves all columns, and at the end the row is in order.
// The bottleneck is the chain from column to column: reductions in a warp, a block and the cluster, a barrier of the
// block, and candidates on their way between blocks (docs/notebook/25).
//
// C: the panel, of `rows` below each other. B: LAPACK's ipiv, int32, one for each column, counted from 1 and from the
// matrix's first row, which is `first` rows above. C0: LAPACK's info, an int32 for each matrix: where it is 0 it becomes
// the order of the first pivot that is. The workspace: how rows move (`exchange.cu`), 2 COLUMNS int32 for each matrix.

#include "include/linalg/strides.cuh"
#include "include/ptx/bulk.cuh"
#include "include/ptx/cp_async.cuh"
#include "include/ptx/dependents.cuh"
#include "include/ptx/mbarrier.cuh"

constexpr int COLUMNS = 32 / ROWS, LARGEST_CLUSTER = 16, MOST_WARPS = 16, NOWHERE = 0x7fffffff;

struct LuPanel {
  Strides panel;
  long long pivots, moves;  // from matrix to matrix
  int rows, columns, first, cluster;
};

// The size of an element, plus one, and where it is; the largest comes first, and of equal ones the uppermost.
struct Candidate {
  unsigned size;
  int position;
};

__device__ __forceinline__ Candidate best_of_warp(Candidate c) {
  const unsigned size = __reduce_max_sync(~0u, c.size);
  return {size, __reduce_min_sync(~0u, c.size == size ? c.position : NOWHERE)};
}

// Of each block of the cluster its candidate and what is left of that row, and its warps' candidates. All are there
// twice, for columns by turns: who is ahead writes for the next column while others still read.
struct Shared {
  float rows[2][LARGEST_CLUSTER][COLUMNS];
  Candidate candidates[2][LARGEST_CLUSTER];
  unsigned long long received[2], read[2];  // mbarriers: all candidates are here; all blocks have read ours
  float own[COLUMNS];
  Candidate of_warps[2][MOST_WARPS];
};

__device__ __forceinline__ unsigned in_block(const void* place, int rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(place)), "r"(rank));
  return there;
}

// By one warp: to all blocks, whose barriers count the bytes. A barrier of the cluster in its place was most of the time.
// A block alone stores for itself: asynchronous stores fault where a cluster has one block.
__device__ __forceinline__ void send(Shared& shared, int turn, int rank, int cluster, Candidate candidate, int left) {
  constexpr int QUADS = COLUMNS / 4;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = lane; i < cluster * QUADS; i += 32) {
    const int c = i % QUADS * 4, block = i / QUADS;
    float four[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) four[e] = c + e < left ? shared.own[c + e] : 0.f;
    if (cluster == 1) {
      *reinterpret_cast<float4*>(&shared.rows[turn][0][c]) = {four[0], four[1], four[2], four[3]};
      continue;
    }
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(in_block(&shared.rows[turn][rank][c], block)), "f"(four[0]), "f"(four[1]), "f"(four[2]),
                 "f"(four[3]), "r"(in_block(&shared.received[turn], block)) : "memory");
  }
  if (cluster == 1) {
    if (lane == 0) shared.candidates[turn][0] = candidate;
    return;
  }
  const int block = min(lane, cluster - 1);
  const unsigned to = in_block(&shared.candidates[turn][rank], block), barrier = in_block(&shared.received[turn], block);
  if (lane < cluster)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                 ::"r"(to), "r"(candidate.size), "r"(candidate.position), "r"(barrier) : "memory");
}

// A warp's 32 rows from or to memory, lanes along what is contiguous. body(row of 32, column, its word in the tile)
template <typename Body>
__device__ __forceinline__ void each_element(float* tile, const Strides& s, Body body) {
#pragma unroll 8
  for (int i = threadIdx.x % 32; i < 32 * COLUMNS; i += 32) {
    const int r = s.along_rows() ? i % 32 : i / COLUMNS, c = s.along_rows() ? i / 32 : i % COLUMNS;
    body(r, c, tile + r * (COLUMNS + 1) + c);
  }
}

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS)
linalg_lu_panel(const float* A, const float* B, const float* C0, float* C, char* workspace,
                const __grid_constant__ LuPanel s) {
  extern __shared__ float tiles[];
  __shared__ __align__(16) Shared shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int rank = blockIdx.x % s.cluster, batch = blockIdx.x / s.cluster;
  const int top = (rank * warps + warp) * ROWS * 32;  // the warp's first row
  float* const panel = C + batch * s.panel.batch;
  int* const pivots = reinterpret_cast<int*>(const_cast<float*>(B)) + batch * s.pivots;
  int* const moves = reinterpret_cast<int*>(workspace) + batch * s.moves;
  int* const info = reinterpret_cast<int*>(const_cast<float*>(C0)) + batch;
  float* const tile = tiles + warp * 32 * (COLUMNS + 1);
  const int steps = min(s.rows, s.columns);
  const bool alone = s.cluster == 1;
  float v[ROWS][COLUMNS];
  int position[ROWS];  // less than the column: done; -1: none
  previous_kernel_has_ended();
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    each_element(tile, s.panel, [&](int r, int c, float* word) {  // all at once on their way
      const int row = top + i * 32 + r;
      copy4_or_zero(shared_address(word), panel + s.panel.at(row, c), row < s.rows && c < s.columns);
    });
    copies_wait_all();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) v[i][c] = tile[lane * (COLUMNS + 1) + c];
    __syncwarp();
    const int row = top + i * 32 + lane;
    position[i] = row < s.rows ? row : -1;
  }
  if (threadIdx.x < COLUMNS) shared.own[threadIdx.x] = 0.f;  // a block that has no rows left sends it
  if (threadIdx.x == 0)
    for (int turn = 0; turn < 2; ++turn) {
      mbarrier_init(shared_address(&shared.received[turn]), 1);
      mbarrier_init(shared_address(&shared.read[turn]), s.cluster);
    }
  // From here on all blocks have read, and have their barriers.
  asm volatile("fence.mbarrier_init.release.cluster;\n"
               "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");

#pragma unroll 1
  for (int column = 0; column < COLUMNS; ++column) {
    float multiplier[ROWS];
    const float* u = shared.own;
    bool done[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) done[i] = true;
    if (column < steps) {
      const int turn = column % 2;
      const unsigned received = shared_address(&shared.received[turn]);
      if (!alone && threadIdx.x == 0) bulk_expect(received, s.cluster * (COLUMNS * sizeof(float) + sizeof(Candidate)));
      Candidate best = {0, NOWHERE};
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const unsigned size = (__float_as_uint(v[i][0]) & 0x7fffffff) + 1;
        if (position[i] >= column && (size > best.size || (size == best.size && position[i] < best.position)))
          best = {size, position[i]};
      }
      best = best_of_warp(best);
      if (lane == 0) shared.of_warps[turn][warp] = best;
      __syncthreads();
      // What was sent for the column before has been read. Nobody waits to hear it of the last two columns.
      if (!alone && warp == warps - 1 && column > 0 && column + 1 < steps) {
        const unsigned there = in_block(&shared.read[1 - turn], min(lane, s.cluster - 1));
        if (lane < s.cluster)
          asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
      }
      best = best_of_warp(lane < warps ? shared.of_warps[turn][lane] : Candidate{0, NOWHERE});
      bool is_candidate = false;
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
        if (position[i] == best.position) {
          is_candidate = true;
#pragma unroll
          for (int c = 0; c < COLUMNS; c += 4)
            *reinterpret_cast<float4*>(shared.own + c) = {v[i][c], v[i][c + 1], v[i][c + 2], v[i][c + 3]};
        }
      if (best.size ? __any_sync(~0u, is_candidate) : warp == 0) {
        __syncwarp();
        if (!alone && column > 1) mbarrier_wait(shared_address(&shared.read[turn]), column / 2 % 2 ^ 1);
        send(shared, turn, rank, s.cluster, best, COLUMNS - column);
      }
      if (alone) __syncthreads();
      else mbarrier_wait(received, column / 2 % 2);
      const Candidate theirs = lane < s.cluster ? shared.candidates[turn][lane] : Candidate{0, NOWHERE};
      best = best_of_warp(theirs);
      const int winner = __ffs(__ballot_sync(~0u, theirs.position == best.position)) - 1;
      u = shared.rows[turn][winner];
      const float pivot = u[0], reciprocal = 1.f / pivot;
      const bool is_zero = best.size == 1, is_normal = best.size > 0x00800000;
      if (rank == 0 && threadIdx.x == 0) {
        pivots[column] = s.first + best.position + 1;
        if (is_zero && *info == 0) *info = s.first + column + 1;
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        if (position[i] == best.position) position[i] = column;
        else if (position[i] == column) position[i] = best.position;
        done[i] = position[i] <= column;
        multiplier[i] = is_zero ? v[i][0] : is_normal ? v[i][0] * reciprocal : v[i][0] / pivot;
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (done[i]) {
        const float first = v[i][0];
#pragma unroll
        for (int c = 1; c < COLUMNS; ++c) v[i][c - 1] = v[i][c];
        v[i][COLUMNS - 1] = first;
      } else {
#pragma unroll
        for (int c = 1; c < COLUMNS; ++c) v[i][c - 1] = fmaf(-multiplier[i], u[c], v[i][c]);
        v[i][COLUMNS - 1] = multiplier[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) tile[lane * (COLUMNS + 1) + c] = v[i][c];
    tile[lane * (COLUMNS + 1) + COLUMNS] = __int_as_float(position[i]);
    __syncwarp();
    each_element(tile, s.panel, [&](int r, int c, float* word) {
      const int to = __float_as_int(tile[r * (COLUMNS + 1) + COLUMNS]);
      if (to >= 0 && c < s.columns) panel[s.panel.at(to, c)] = *word;
    });
    __syncwarp();
    const int row = top + i * 32 + lane;
    if (position[i] < 0) continue;
    if (position[i] < steps) moves[position[i]] = row;
    if (row < steps) moves[COLUMNS + row] = position[i] < steps ? -1 : position[i];
  }
}
