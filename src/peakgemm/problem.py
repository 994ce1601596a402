"""The nouns: what is to be computed (`Problem`) and how a kernel is cut for it (`Config`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from operator import index
from typing import Any

from .errors import InvalidValue

# Kernels count rows, columns and k-steps in 32 bits and step past the end by at most one tile.
MAX_SIZE = 2**31 - 1024


def _whole(name: str, value: Any) -> int:
    """``value`` as an int, NumPy's integers included.

    Raises:
        InvalidValue: it is no integer.
    """
    try:
        return index(value)
    except TypeError:
        raise InvalidValue(f"{name} = {value!r} must be an integer") from None


@dataclass(frozen=True, slots=True)
class Problem:
    """One FP32 product ``C = alpha A B + beta C``, row-major.

    ``A (M, K)`` has ``lda`` elements from row to row, ``B (K, N)`` has ``ldb``,
    ``C (M, N)`` has ``ldc``. Sizes and leading dimensions are counted in elements.
    ``alignment`` holds, for A, B and C, the largest power of two up to 16 that divides the
    address in bytes: what the vector accesses of a kernel may rely on.

    Raises:
        InvalidValue: a negative size, a size above 2**31 - 1024, a leading
            dimension shorter than its row, or one of them no integer.
    """

    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    alpha: float = 1.0
    beta: float = 0.0
    alignment: tuple[int, int, int] = (16, 16, 16)

    def __post_init__(self) -> None:
        for field in ("m", "n", "k", "lda", "ldb", "ldc"):
            object.__setattr__(self, field, _whole(field if field.startswith("ld") else field.upper(),
                                                   getattr(self, field)))
        for name, size in (("M", self.m), ("N", self.n), ("K", self.k)):
            if not 0 <= size <= MAX_SIZE:
                raise InvalidValue(f"{name} = {size} is outside 0..{MAX_SIZE}; split the product along {name}")
        for name, ld, row in (("lda", self.lda, self.k), ("ldb", self.ldb, self.n), ("ldc", self.ldc, self.n)):
            if ld < row:
                raise InvalidValue(
                    f"{name} = {ld} is shorter than its row of {row} elements; pass {name} >= {row} (row-major)"
                )

    @classmethod
    def contiguous(cls, m: int, n: int, k: int, alpha: float = 1.0, beta: float = 0.0) -> Problem:
        """The problem over three packed row-major matrices."""
        return cls(m, n, k, max(k, 1), max(n, 1), max(n, 1), alpha, beta)

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiply and one add per (m, n, k)."""
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Config:
    """How a kernel is cut: a block computes ``bm x bn`` of C in steps of ``bk``, a thread ``tm x tn``.

    Each field becomes a macro of the same name in capitals. ``stages`` counts the
    shared-memory buffers (0: the kernel stages nothing in shared memory),
    ``fragments`` the register buffers of A and B fragments, ``raster`` the height, in
    tiles, of the column-major groups in which blocks walk over C (1: row by row),
    ``min_blocks`` the blocks per SM that the register allocator must leave room for,
    ``passes`` into how many column slices a thread cuts its tile. ``aligned`` chooses
    the compilation with vector accesses and no bounds test.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int = 1
    fragments: int = 1
    raster: int = 1
    min_blocks: int = 1
    passes: int = 1
    aligned: bool = False

    def __post_init__(self) -> None:
        for f in fields(self):
            value = _whole(f.name, getattr(self, f.name))
            low = 0 if f.name in ("stages", "aligned") else 1
            if value < low:
                raise InvalidValue(f"{f.name} = {value} must be an integer of at least {low}")
            object.__setattr__(self, f.name, bool(value) if f.name == "aligned" else value)

    @property
    def threads(self) -> int:
        """Threads per block: (bm / tm)(bn / tn)."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    def macros(self) -> dict[str, int]:
        """The ``#define`` that the compilation passes for each field."""
        return {name.upper(): int(value) for name, value in asdict(self).items()}

    def guarded(self) -> Config:
        """The compilation of the same tile that accepts every shape and alignment."""
        return replace(self, aligned=False)

    def label(self) -> str:
        """``BMxBNxBK/TMxTN`` and what differs from the plain kernel."""
        extras = ""
        if self.stages > 1:
            extras += f" {self.stages}st"
        if self.fragments > 1:
            extras += " db"
        return f"{self.bm}x{self.bn}x{self.bk}/{self.tm}x{self.tn}{extras}"

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)
