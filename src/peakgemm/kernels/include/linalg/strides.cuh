// How a matrix of a batch lies in memory: elements from row to row, column to column, matrix to matrix. One of the
// first two is 1 or -1; lanes of a warp run along that one, so that a warp reads and writes consecutive words.
struct Strides {
  long long row, column, batch;

  __device__ __forceinline__ long long at(int r, int c) const { return r * row + c * column; }
  __device__ __forceinline__ bool along_rows() const { return row == 1 || row == -1; }
};
