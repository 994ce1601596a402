"""At which sizes linear algebra is rerouted."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """From which sizes on peakgemm is faster than cuSOLVER and cuBLAS.

    Attributes:
        rows: of one matrix.
        columns: of right-hand sides, or of the matrix that is multiplied by its transpose.
        batch_rows, batch_columns: the same for each matrix of a batch.
        batch_total: rows of all matrices of a batch together.
    """

    rows: int
    columns: int = 1
    batch_rows: int = 64
    batch_columns: int = 1
    batch_total: int = 4096

    def hold(self, count: int, rows: int, columns: int) -> bool:
        """Whether ``count`` matrices reach them."""
        return (rows >= self.rows and columns >= self.columns) or (
            count > 1 and rows >= self.batch_rows and columns >= self.batch_columns
            and count * rows >= self.batch_total)


# In both precisions of `peakgemm.linalg` on an H200 (results/h200/linalg.json). Below these the library keeps the call.
FASTER = {
    "factor": Sizes(rows=1024),
    "solve": Sizes(rows=512, columns=256, batch_columns=64),
    "inverse": Sizes(rows=1024),
    "gram": Sizes(rows=512, columns=512),
    "lu": Sizes(rows=1024, batch_rows=128, batch_total=1 << 15),
    "orthogonal": Sizes(rows=8192, columns=512, batch_rows=1 << 30),  # the longer side, and the other
}
