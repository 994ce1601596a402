// What a stage of streamed.cu holds: a chunk of A as it lies in memory, and B's planes. Who copies it.
#include "include/mma/warpgroups.cuh"
#include "include/split/guard.cuh"

constexpr int COPIERS = 128, HELPERS = PRODUCERS / COPIERS;  // warpgroups that take turns at copying a chunk
constexpr int A_BYTES = BM * 68 * 4;                         // of a stage, in whichever layout
constexpr int B_PLANE = BN * 64, B_HALF = PLANES * B_PLANE;  // bytes, of half a chunk
constexpr int PITCH = A_BYTES + 2 * B_HALF, RING = STAGES * PITCH;  // of a stage, of all
constexpr int B_TAIL = BN * 4 + 32;  // a chunk's scales of columns, and B's summary
constexpr int SLOTS = STAGES + 1;    // for those, read until the products of the next chunk have begun
constexpr int APART_HIGHEST = HIGHEST / 2, APART_LOWEST = LOWEST / 2;  // exponents: no two operands are compared
