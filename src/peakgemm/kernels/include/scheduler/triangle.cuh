// The tiles of one triangle of a square result, diagonal included: half of the work of a symmetric product.
//
// The triangle is cut into squares of the tiles' longer side, and the squares are folded to a rectangle, which tiles walk
// over as over any C: what lies right of the fold are the triangle's last columns, turned by half a turn.
#ifndef TRIANGLE
#define TRIANGLE 0
#endif
enum Triangle { WHOLE, LOWER, UPPER };  // of problem.Triangle

// Whether an element of C is wanted.
__device__ __forceinline__ bool in_triangle(int row, int column) {
  return TRIANGLE == WHOLE || (TRIANGLE == LOWER ? row >= column : row <= column);
}

// Tiles of `size` x `size`, down and across, by ROWS x COLUMNS, as Problem.tiles counts them.
template <int ROWS, int COLUMNS>
struct Fold {
  static constexpr int SIDE = ROWS > COLUMNS ? ROWS : COLUMNS;
  int squares, down, across;

  __device__ __forceinline__ Fold(int size) {
    squares = (size + SIDE - 1) / SIDE;
    down = (squares + (squares % 2 == 0)) * (SIDE / ROWS);
    across = (squares + 1) / 2 * (SIDE / COLUMNS);
  }

  // From a place in the rectangle to its place in C.
  __device__ __forceinline__ void unfold(int& row, int& column) const {
    const int even = squares % 2 == 0;
    int i = row / SIDE, j = column / SIDE;
    if (i >= j + even) {
      i -= even;
    } else {
      i = squares - 1 - i;
      j = squares - j - even;
    }
    row = (TRIANGLE == UPPER ? j : i) * SIDE + row % SIDE;
    column = (TRIANGLE == UPPER ? i : j) * SIDE + column % SIDE;
  }
};
