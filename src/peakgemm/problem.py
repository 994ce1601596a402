"""The nouns: what is to be computed (`Problem`) and how a kernel is cut for it (`Config`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, IntEnum
from functools import cache
from math import prod
from operator import index
from typing import Any, ClassVar, TypeVar

from .errors import InvalidValue

C = TypeVar("C", bound="Config")
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


class Triangle(Enum):
    """The part of a square result that is wanted, its diagonal included; ``NONE``: all of it."""

    NONE = 0
    LOWER = 1
    UPPER = 2

    @property
    def flipped(self) -> Triangle:
        """The same of the transposed result."""
        return Triangle((3 - self.value) % 3)


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
    `turned` asks for C^T, which some tensor-core kernels compute. ``triangle``: what is computed and written of a
    square C. ``one_operand``: op(B) is op(A)^T, the same memory, which kernels that split operands before split once.
    ``sparse``: sums of few terms, as of triangular operands, need not be as exact as FP32's; tensor cores may
    have them.

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
    triangle: Triangle = Triangle.NONE
    one_operand: bool = False
    sparse: bool = False

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
        if self.triangle is not Triangle.NONE and self.m != self.n:
            raise InvalidValue(f"a triangle of {self.m} x {self.n} results is asked for; only a square result has one")

    @classmethod
    def contiguous(cls, m: int, n: int, k: int, alpha: float = 1.0, beta: float = 0.0) -> Problem:
        """The problem over three packed row-major matrices."""
        return cls(m, n, k, max(k, 1), max(n, 1), max(n, 1), alpha, beta)

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiply and one add per k of each result of every product of the batch."""
        results = self.m * self.n if self.triangle is Triangle.NONE else self.m * (self.m + 1) // 2
        return 2 * results * self.k * self.batch.count

    @property
    def is_empty(self) -> bool:
        """Whether nothing is multiplied: alpha or a size is 0."""
        return self.alpha == 0 or 0 in (self.m, self.n, self.k, self.batch.count)

    @property
    def is_plain(self) -> bool:
        """Whether it is one row-major product in place: what the kernels of the ladder take."""
        return (not (self.trans_a or self.trans_b or self.trans_c or self.batch.sizes)
                and self.triangle is Triangle.NONE and self.c0 in (None, (self.ldc, 1)))

    def tiles(self, rows: int, columns: int) -> tuple[int, int]:
        """Tiles of ``rows`` x ``columns`` of one matrix: down and across.

        Those of a triangle are cut from squares of their longer side. The squares of the triangle are folded to a
        rectangle (include/scheduler/triangle.cuh): of an even number of them a side, one row more and half as many
        columns.
        """
        if self.triangle is Triangle.NONE:
            return -(-self.m // rows), -(-self.n // columns)
        side = max(rows, columns)
        squares = -(-self.m // side)
        down, across = (squares + 1, squares // 2) if squares % 2 == 0 else (squares, (squares + 1) // 2)
        return down * (side // rows), across * (side // columns)

    def turned(self) -> Problem:
        """The same product as ``C^T = alpha op(B)^T op(A)^T + beta C0^T``: A and B change places."""
        b, c0 = self.batch, self.c0
        alignment = (self.alignment[1], self.alignment[0], self.alignment[2])
        return replace(self, m=self.n, n=self.m, lda=self.ldb, ldb=self.lda, trans_a=not self.trans_b,
                       trans_b=not self.trans_a, trans_c=not self.trans_c, triangle=self.triangle.flipped,
                       alignment=alignment,
                       c0=None if c0 is None else (c0[1], c0[0]), batch=replace(b, a=b.b, b=b.a))

    @property
    def layout(self) -> str:
        """``NN``, ``NT``, ``TN`` or ``TT``: A's letter, then B's."""
        return "NT"[self.trans_a] + "NT"[self.trans_b]


# The fields that every JSON of a configuration has, of whatever family; of others those that are set.
_RECORDED = ("bm", "bn", "bk", "tm", "tn", "stages", "fragments", "raster", "min_blocks", "passes", "aligned")
_FROM_ZERO = frozenset({"stages", "producers", "registers", "split"})
_OF_LAUNCH = frozenset({"split", "handed"})  # fields that are no macros


class _Shared:
    """What is asked of the configurations of all families, with the value it has where a family's own has no such
    field."""

    __slots__ = ()
    stages = 1        # buffers in shared memory
    fragments = 1     # register buffers of fragments of A and B
    passes = 1        # column slices into which a thread cuts its tile
    raster = 1        # height, in tiles, of the column-major groups in which blocks walk over C; 1: row by row
    min_blocks = 1    # blocks an SM that the register allocator must leave room for
    slices = 1        # groups of threads of a block, each of `threads`
    producers = 0     # threads of a block that copy, and multiply nothing
    registers = 0     # of a computing thread where setmaxnreg deals the register file; 0: it does not
    cluster = 1       # blocks of a cluster
    # How blocks share K. 1: a block computes its tiles whole; s > 1: every tile's K is cut among s blocks; 0, stream-K:
    # whole tiles in full waves, and the k-steps of the others dealt evenly to all blocks.
    split = 1
    handed = False    # stream-K that cuts a tile in two at most: the second block begins with the first one's sums
    one_tile = False  # a block has one tile; else it is persistent
    trans_c = False   # C^T is computed
    chunked = False   # sums over 32 k-steps are added up among themselves; else K is one chain
    aligned = False   # vector accesses, and no bounds test
    traits: ClassVar[tuple[str, ...]] = ()  # properties that follow from the fields, and are macros as those are


@dataclass(frozen=True, slots=True)
class Config(_Shared):
    """How a kernel is cut: a block computes ``bm x bn`` of C in steps of ``bk``, a thread ``tm x tn``.

    Each family of kernels has a configuration of its own, derived from this, with a field for everything else that it
    leaves open. Each field but `_OF_LAUNCH` becomes a macro of the same name in capitals.

    Raises:
        InvalidValue: a field that is no integer, or too small.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int

    def __post_init__(self) -> None:
        for f in fields(self):
            value, flag = _whole(f.name, getattr(self, f.name)), isinstance(f.default, bool)
            low = 0 if flag or isinstance(f.default, IntEnum) or f.name in _FROM_ZERO else 1
            if value < low:
                raise InvalidValue(f"{f.name} = {value} must be an integer of at least {low}")
            if isinstance(f.default, IntEnum):
                members = type(f.default)
                if value not in set(members):
                    raise InvalidValue(f"{f.name} = {value} must be 0 to {len(members) - 1}: "
                                       + ", ".join(member.name for member in members))
                value = members(value)
            object.__setattr__(self, f.name, bool(value) if flag else value)

    @classmethod
    def from_json(cls: type[C], found: Mapping[str, Any]) -> C:
        """The configuration that `to_json` made an object of. A name that is no field must have the value that all
        configurations of the kind have.

        Raises:
            InvalidValue: a value that a field cannot have.
            TypeError: fields are missing or unknown.
        """
        own, given = {f.name for f in fields(cls)}, {**found}  # a TypeError where it is no object
        return cls(**{name: value for name, value in given.items() if name in own or getattr(cls, name, None) != value})

    @property
    def tile(self) -> Config:
        """The tile alone."""
        return Config(self.bm, self.bn, self.bk, self.tm, self.tn)

    @property
    def threads(self) -> int:
        """Threads that compute a tile, of one slice: (bm / tm)(bn / tn)."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def block_threads(self) -> int:
        """All threads of a block: those of every slice, and those that copy."""
        return self.threads * self.slices + self.producers

    def grid(self, problem: Problem) -> tuple[int, int]:
        """Tiles of one matrix: down and across."""
        return problem.tiles(self.bm, self.bn)

    def tiles(self, problem: Problem) -> int:
        """Tiles of all products of the batch, of an empty one too."""
        return prod(self.grid(problem)) * max(problem.batch.count, 1)

    def steps(self, problem: Problem) -> int:
        """Steps of ``bk`` along K."""
        return -(-problem.k // self.bk)

    def macros(self) -> dict[str, int]:
        """The ``#define`` that the compilation passes for each field and trait, and for the raster of all kernels."""
        named = (*(f.name for f in fields(self) if f.name not in _OF_LAUNCH), *self.traits)
        return {"RASTER": self.raster} | {name.upper(): int(getattr(self, name)) for name in named}

    def label(self) -> str:
        """``BMxBNxBK/TMxTN`` and what differs from the plain kernel."""
        sharing = f"split-K {self.split}" if self.split else "handed-on stream-K" if self.handed else "stream-K"
        extras = ((self.stages > 1, f"{self.stages}st"), (self.fragments > 1, "db"),
                  (self.slices > 1, f"{self.slices}sl"), (self.cluster > 1, f"{self.cluster}cl"),
                  (self.split != 1, sharing))
        return " ".join([f"{self.bm}x{self.bn}x{self.bk}/{self.tm}x{self.tn}", *(text for so, text in extras if so)])

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object: those that all families record, and of others those that are set."""
        return {name: getattr(self, name) for name in _RECORDED} | self.set_fields()

    def set_fields(self) -> dict[str, Any]:
        """The fields that are not their defaults."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {name: int(value) if isinstance(value, IntEnum) else value for name, value in values.items()}


def varied(config: C, **changes: Any) -> C:
    """``config`` with other values; it must have a field for each that differs. The result is kept: a new one is
    checked, and models ask for a hundred for each shape."""
    made: C = _varied(config, **changes)
    return made


@cache
def _varied(config: Any, **changes: Any) -> Any:
    changes = {name: value for name, value in changes.items() if getattr(config, name) != value}
    return replace(config, **changes) if changes else config
