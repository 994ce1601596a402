// How a matrix of a batch lies in memory: elements from row to row, column to column, matrix to matrix. Lanes of a warp
// run along rows where the row stride is 1 or -1, else along columns, so that they read and write consecutive words.
struct Position {
  int r, c;
};

struct Strides {
  long long row, column, batch;

  __device__ __forceinline__ long long at(int r, int c) const { return r * row + c * column; }
  __device__ __forceinline__ bool along_rows() const { return row == 1 || row == -1; }
  __device__ __forceinline__ Position position(int line, int lane) const {
    return along_rows() ? Position{lane, line} : Position{line, lane};
  }
};
