"""The nouns: what is to be computed (`Problem`) and how a kernel is cut for it (`Config`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from enum import IntEnum
from functools import cache
from math import prod
from operator import index
from typing import Any, ClassVar

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
class Batch:
    """The batch of a product: sizes, outermost first, and for each operand its strides in elements (0: broadcast).

    At most `MAX_LEVELS` dimensions: what a kernel resolves from one launch. `merged` makes
    fewer of many.

    Raises:
        InvalidValue: strides that do not match the sizes, a negative size, or too many dimensions.
    """

    sizes: tuple[int, ...] = ()
    a: tuple[int, ...] = ()
    b: tuple[int, ...] = ()
    c: tuple[int, ...] = ()
    c0: tuple[int, ...] = ()

    MAX_LEVELS: ClassVar[int] = 3

    def __post_init__(self) -> None:
        for name in ("a", "b", "c", "c0"):
            if len(getattr(self, name)) != len(self.sizes):
                raise InvalidValue(f"batch strides {name} = {getattr(self, name)} do not match the "
                                   f"{len(self.sizes)} batch sizes {self.sizes}; pass one stride for each")
        if any(size < 0 for size in self.sizes):
            raise InvalidValue(f"batch sizes {self.sizes} must not be negative")
        if len(self.sizes) > self.MAX_LEVELS:
            raise InvalidValue(f"{len(self.sizes)} batch dimensions, a kernel resolves {self.MAX_LEVELS}; "
                               "merge them or make an operand contiguous")

    @property
    def count(self) -> int:
        """Products in the batch; 1 without batch dimensions."""
        return prod(self.sizes)

    @staticmethod
    def merged(sizes: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...],
               c0: tuple[int, ...]) -> Batch:
        """The same batch in the fewest dimensions: those of size 1 dropped, neighbours joined where every
        operand steps from one to the next evenly.

        Raises:
            InvalidValue: more than `MAX_LEVELS` remain.
        """
        kept: list[tuple[int, list[int]]] = []
        for size, *strides in zip(sizes, a, b, c, c0, strict=True):
            if size == 1:
                continue
            if kept and all(outer == size * inner for outer, inner in zip(kept[-1][1], strides, strict=True)):
                kept[-1] = (kept[-1][0] * size, strides)
            else:
                kept.append((size, strides))
        columns = [tuple(strides[i] for _, strides in kept) for i in range(4)]
        return Batch(tuple(size for size, _ in kept), *columns)


@dataclass(frozen=True, slots=True)
class Problem:
    """One FP32 product ``C = alpha op(A) op(B) + beta C0``, row-major.

    ``A (M, K)`` has ``lda`` elements from row to row, ``B (K, N)`` has ``ldb``,
    ``C (M, N)`` has ``ldc``. Sizes and leading dimensions are counted in elements.
    ``alignment`` holds, for A, B and C, the largest power of two up to 16 that divides the
    address in bytes: what the vector accesses of a kernel may rely on.

    ``trans_a``: A is stored as ``(K, M)``, ``lda`` elements from k to k; ``trans_b``: B as ``(N, K)``.
    ``c0`` gives the row and column strides of the matrix that beta scales (0 broadcasts);
    None: it is C itself. ``batch`` repeats the product. The kernels of the ladder take
    neither: see `is_plain`. ``trans_c``: C is stored as ``(N, M)``, ``ldc`` elements from n to n; so
    `turned` asks for C^T, which some tensor-core kernels compute.

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
    trans_a: bool = False
    trans_b: bool = False
    c0: tuple[int, int] | None = None
    batch: Batch = Batch()
    trans_c: bool = False

    def __post_init__(self) -> None:
        for field in ("m", "n", "k", "lda", "ldb", "ldc"):
            object.__setattr__(self, field, _whole(field if field.startswith("ld") else field.upper(),
                                                   getattr(self, field)))
        for name, size in (("M", self.m), ("N", self.n), ("K", self.k)):
            if not 0 <= size <= MAX_SIZE:
                raise InvalidValue(f"{name} = {size} is outside 0..{MAX_SIZE}; split the product along {name}")
        for name, ld, row in (("lda", self.lda, self.m if self.trans_a else self.k),
                              ("ldb", self.ldb, self.k if self.trans_b else self.n),
                              ("ldc", self.ldc, self.m if self.trans_c else self.n)):
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
        """Floating-point operations: one multiply and one add per (m, n, k) of every product of the batch."""
        return 2 * self.m * self.n * self.k * self.batch.count

    @property
    def is_empty(self) -> bool:
        """Whether nothing is multiplied: alpha or a size is 0."""
        return self.alpha == 0 or 0 in (self.m, self.n, self.k, self.batch.count)

    @property
    def is_plain(self) -> bool:
        """Whether it is one row-major product in place: what the kernels of the ladder take."""
        return (not (self.trans_a or self.trans_b or self.trans_c or self.batch.sizes)
                and self.c0 in (None, (self.ldc, 1)))

    def turned(self) -> Problem:
        """The same product as ``C^T = alpha op(B)^T op(A)^T + beta C0^T``: A and B change places."""
        b, c0 = self.batch, self.c0
        alignment = (self.alignment[1], self.alignment[0], self.alignment[2])
        return replace(self, m=self.n, n=self.m, lda=self.ldb, ldb=self.lda, trans_a=not self.trans_b,
                       trans_b=not self.trans_a, trans_c=not self.trans_c, alignment=alignment,
                       c0=None if c0 is None else (c0[1], c0[0]), batch=replace(b, a=b.b, b=b.a))

    @property
    def layout(self) -> str:
        """``NN``, ``NT``, ``TN`` or ``TT``: A's letter, then B's."""
        return "NT"[self.trans_a] + "NT"[self.trans_b]


class FfmaOrder(IntEnum):
    """The order of a k-step's FFMAs over a thread's tile, always back and forth (include/mma/outer_product*.cuh).

    A row reuses an element of A, a column one of B. ``REVERSED`` begins the first row at its other end.
    """

    ROWS = 0
    ROWS_REVERSED = 1
    COLUMNS = 2


_FLAGS = frozenset({"aligned", "a_first", "chunked", "one_tile", "trans_c", "handed"})
_FROM_ZERO = frozenset({"stages", "producers", "registers", "split", "ffma_order"})
_LADDER_FIELDS = 11  # of `Config`: those behind them are the library's alone


@dataclass(frozen=True, slots=True)
class Config:
    """How a kernel is cut: a block computes ``bm x bn`` of C in steps of ``bk``, a thread ``tm x tn``.

    Each field becomes a macro of the same name in capitals. ``stages`` counts the
    shared-memory buffers (0: the kernel stages nothing in shared memory; in kernels/ffma/small.py parts of one),
    ``fragments`` the register buffers of A and B fragments, ``raster`` the height, in
    tiles, of the column-major groups in which blocks walk over C (1: row by row),
    ``min_blocks`` the blocks per SM that the register allocator must leave room for,
    ``passes`` into how many column slices a thread cuts its tile. ``aligned`` chooses
    the compilation with vector accesses and no bounds test.

    Of the library's kernels alone: ``producers`` counts the threads that copy, and multiply nothing,
    ``registers`` what a computing thread gets when setmaxnreg deals the register file (0: it does
    not), ``slices`` the groups of threads that share a block's tile, each with its share of K, intra-block split-K
    (in kernels/ffma/small.py each with a tile of its own). ``split``
    says how blocks share K: 1, a block computes its tiles whole; s > 1, every tile's K is cut among s
    blocks; 0, stream-K: whole tiles in full waves, and the k-steps of the others dealt evenly to all
    blocks. ``handed``, of stream-K: a tile is cut in two at most, and the second block begins with the accumulators of
    the first (include/scheduler/handed.cuh). ``cluster`` blocks form a cluster: of ffma/specialised.cu they have a part
    of one tile's K each (cluster split-K); on tensor cores they share what they copy of B, one below the other.
    ``ffma_order`` is the order of a k-step's FFMAs, and ``a_first`` loads A's fragments before B's: of these ptxas
    makes register allocations with more or fewer bank conflicts. ``chunked``: sums over 32 k-steps are added up among
    themselves; else K is one chain. ``one_tile``: a block has one tile; else it is persistent. ``copy_groups``: groups
    of copying warps that take the tiles of K in turn. Of tensor-core kernels ``accumulations`` counts how often a
    chunk's products are added up in FP32, and ``trans_c`` asks for C^T.
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
    producers: int = 0
    registers: int = 0
    slices: int = 1
    split: int = 1
    cluster: int = 1
    ffma_order: FfmaOrder = FfmaOrder.ROWS
    a_first: bool = False
    chunked: bool = False
    one_tile: bool = False
    copy_groups: int = 1
    accumulations: int = 1
    trans_c: bool = False
    handed: bool = False

    def __post_init__(self) -> None:
        for f in fields(self):
            value = _whole(f.name, getattr(self, f.name))
            low = 0 if f.name in _FROM_ZERO or f.name in _FLAGS else 1
            if value < low:
                raise InvalidValue(f"{f.name} = {value} must be an integer of at least {low}")
            if f.name == "ffma_order":
                if value > FfmaOrder.COLUMNS:
                    raise InvalidValue(f"ffma_order = {value} must be 0 to {int(FfmaOrder.COLUMNS)}: "
                                       + ", ".join(order.name for order in FfmaOrder))
                value = FfmaOrder(value)
            object.__setattr__(self, f.name, bool(value) if f.name in _FLAGS else value)

    @property
    def threads(self) -> int:
        """Threads that compute a tile, of one slice: (bm / tm)(bn / tn)."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def block_threads(self) -> int:
        """All threads of a block: those of every slice, and those that copy."""
        return self.threads * self.slices + self.producers

    def macros(self) -> dict[str, int]:
        """The ``#define`` that the compilation passes for each field; ``split`` is the launch's affair, ``handed``
        that of two kernels (library.py)."""
        return {name.upper(): int(value) for name, value in asdict(self).items() if name not in ("split", "handed")}

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
        if self.slices > 1:
            extras += f" {self.slices}sl"
        if self.cluster > 1:
            extras += f" {self.cluster}cl"
        if self.split != 1:
            extras += f" split-K {self.split}" if self.split else " handed-on stream-K" if self.handed else " stream-K"
        return f"{self.bm}x{self.bn}x{self.bk}/{self.tm}x{self.tn}{extras}"

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; those of the library's kernels only where they are set."""
        library = {f.name: f.default for f in fields(self)[_LADDER_FIELDS:]}
        return {name: int(value) if isinstance(value, FfmaOrder) else value for name, value in asdict(self).items()
                if name not in library or library[name] != value}


@cache
def varied(config: Config, **changes: Any) -> Config:
    """``config`` with other fields, kept: a new one is checked, and models ask for a hundred for each shape."""
    return replace(config, **changes)
