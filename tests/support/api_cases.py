"""Products drawn for the property tests: the same for NumPy arrays, torch tensors and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

import peakgemm as pg

UNIT = 2.0**-24
SENTINEL = -777.25
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40)
LAYOUTS = ("packed", "packed", "packed", "padded", "transposed", "padded transposed", "shifted", "strided",
           "batch inside", "expanded")

Pick = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Layout:
    """Where an array lies in its flat memory, in elements."""

    floats: int
    offset: int
    strides: tuple[int, ...]


def lay(shape: tuple[int, ...], kind: str, pad: int = 4) -> Layout:
    """Strides of ``shape`` in a way of lying; "expanded" gives every batch dimension stride 0."""
    rank = len(shape)
    order = list(range(rank))  # outermost first
    if "transposed" in kind and rank > 1:
        order[-2:] = [rank - 1, rank - 2]
    if kind == "batch inside" and rank > 2:
        order = [*range(1, rank - 1), 0, rank - 1]
    still = set(range(rank - 2)) if kind == "expanded" else set()
    strides, step = [0] * rank, 2 if kind == "strided" else 1
    for place, dim in enumerate(reversed(order)):
        if dim in still:
            continue
        strides[dim] = step
        step *= max(shape[dim], 1)
        if place == 0 and "padded" in kind:
            step += pad
    offset = {"shifted": 1, "padded": 2}.get(kind, 0)
    last = 0 if 0 in shape else sum(s * (n - 1) for s, n in zip(strides, shape, strict=True)) + 1
    if kind == "flipped" and rank > 1:
        strides[-2], offset = -strides[-2], offset + strides[-2] * max(shape[-2] - 1, 0)
    return Layout(max(last, step) + 4, offset, tuple(strides))


@dataclass
class Case:
    """One call: shapes as the caller's arrays have them (before op), layouts, scales."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    result: tuple[int, ...]
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False
    c: tuple[int, ...] | None = None
    out: bool = False
    in_place: bool = False
    integers: bool = False
    seed: int = 0
    layouts: dict[str, str] = field(default_factory=dict)
    pad: int = 4

    @property
    def k(self) -> int:
        """The inner size."""
        return self.a[-2] if self.trans_a else self.a[-1]


def draw(pick: Pick, sizes: Sequence[int] = SIZES, layouts: Sequence[str] = LAYOUTS) -> Case:
    """A case; ``pick`` chooses one of several."""
    m, n, k = pick(sizes), pick(sizes), pick(sizes)
    batch = tuple(pick((1, 2, 2, 3, 0)) for _ in range(pick((0, 0, 0, 1, 1, 2, 3, 4))))
    vector_a = pick((False,) * 7 + (True,))
    vector_b = pick((False,) * 7 + (True,))
    trans_a, trans_b = (not (vector_a or vector_b) and pick((False, False, True)) for _ in range(2))

    def operand(rows: int, columns: int) -> tuple[int, ...]:
        own = tuple(pick((size, size, 1)) for size in batch)
        return (*own[pick((0, 0, len(own))):], rows, columns)

    a = (k,) if vector_a else operand(k, m) if trans_a else operand(m, k)
    b = (k,) if vector_b else operand(n, k) if trans_b else operand(k, n)
    whole = np.broadcast_shapes(a[:-2], b[:-2])
    result = (*whole, *(() if vector_a else (m,)), *(() if vector_b else (n,)))
    case = Case(a, b, result, trans_a=trans_a, trans_b=trans_b,
                integers=pick((False, True)), seed=pick(range(1000)), pad=pick((1, 4)))
    if not (vector_a or vector_b):
        case.alpha = pick((1.0, 1.0, 1.0, -1.5, 2.0, 0.0))
        case.beta = pick((0.0, 0.0, 1.0, -0.5))
        if case.beta or pick((False, True)):
            kept = result[pick(range(len(result) + 1)):] if pick((False, True)) else result
            case.c = tuple(pick((size, size, size, 1)) for size in kept)
    case.out = pick((False, True))
    case.in_place = case.out and case.c == result and pick((False, True))
    case.layouts = {name: pick(layouts) for name in "abc"}
    case.layouts["out"] = pick([x for x in layouts if x != "expanded"])
    if case.in_place:
        case.layouts["c"] = case.layouts["out"]
    return case


@dataclass
class Arrays:
    """A case's NumPy arrays, each a view of flat memory that holds NaN (``out``: a sentinel) elsewhere."""

    case: Case
    a: Any
    b: Any
    c: Any
    out: Any
    flats: dict[str, Any]

    @property
    def expected(self) -> tuple[Any, Any]:
        """The product in FP64, and the most that float32 may be off (Higham, Accuracy and Stability, 3.1)."""
        case = self.case
        a, b = (x.astype(np.float64) for x in (self.a, self.b))
        if case.trans_a:
            a = np.swapaxes(a, -1, -2)
        if case.trans_b:
            b = np.swapaxes(b, -1, -2)
        exact, scale = np.zeros(case.result), np.zeros(case.result)
        if case.alpha:
            exact = exact + case.alpha * np.matmul(a, b)
            scale = scale + abs(case.alpha) * np.matmul(abs(a), abs(b))
        if case.beta:
            c = self.before.astype(np.float64)
            exact, scale = exact + case.beta * c, scale + abs(case.beta) * abs(c)
        return exact, 0.0 * scale if case.integers else (case.k + 3) * UNIT * scale

    def __post_init__(self) -> None:
        self.before = None if self.c is None else self.c.copy()
        self.outside = None if self.out is None else self._outside()

    def _outside(self) -> Any:
        flat = self.flats["out"].copy()
        where = lay(self.case.result, self.case.layouts["out"], self.case.pad)
        view(flat, self.case.result, where)[...] = 0
        return flat

    def check(self, got: Any) -> None:
        """``got`` is right, and nothing beside ``out`` was written."""
        got = np.asarray(got)
        exact, bound = self.expected
        assert got.shape == self.case.result and got.dtype == np.float32, (got.shape, got.dtype, self.case)
        worst = abs(got - exact) - bound
        assert not worst.size or worst.max() <= 0, (float(worst.max()), self.case)  # a NaN fails too
        if self.out is not None:
            assert np.array_equal(self._outside(), self.outside), f"wrote outside of out: {self.case}"


def view(flat: Any, shape: tuple[int, ...], where: Layout) -> Any:
    """The array that lies so in ``flat``."""
    return np.lib.stride_tricks.as_strided(flat[where.offset:], shape, tuple(4 * s for s in where.strides))


def make(case: Case) -> Arrays:
    """Fill a case's memory."""
    rng = np.random.default_rng(case.seed)
    flats: dict[str, Any] = {}

    def array(name: str, shape: tuple[int, ...], values: bool, rest: float) -> Any:
        where = lay(shape, case.layouts[name], case.pad)
        flats[name] = np.full(where.floats, rest, np.float32)
        x = view(flats[name], shape, where)
        if not values:
            x[...] = np.nan
        elif prod(shape):
            x[...] = rng.integers(-8, 9, shape) if case.integers else rng.standard_normal(shape)
        return x

    nan = float("nan")
    if case.integers and case.alpha == -1.5:
        case.alpha = -2.0
    if case.integers and case.beta == -0.5:
        case.beta = -1.0
    a = array("a", case.a, case.alpha != 0, nan)
    b = array("b", case.b, case.alpha != 0, nan)
    out = array("out", case.result, case.beta != 0 and case.in_place, SENTINEL) if case.out else None
    c = out if case.in_place else None
    if case.c is not None and not case.in_place:
        c = array("c", case.c, case.beta != 0, nan)
    return Arrays(case, a, b, c, out, flats)


def call(case: Case, a: Any, b: Any, c: Any, out: Any) -> Any:
    """The public call for a case."""
    if 1 in (len(case.a), len(case.b)):
        return pg.matmul(a, b, out=out)
    return pg.gemm(a, b, c, alpha=case.alpha, beta=case.beta, trans_a=case.trans_a, trans_b=case.trans_b, out=out)


def check_tensors(case: Case, device: str) -> None:
    """Make the public call on torch tensors that lie in their memory as a case's arrays do."""
    import torch

    arrays = make(case)
    flats = {name: torch.from_numpy(flat).to(device) for name, flat in arrays.flats.items()}  # on the CPU a view

    def tensor(name: str, shape: tuple[int, ...]) -> Any:
        where = lay(shape, case.layouts[name], case.pad)
        return torch.as_strided(flats[name], shape, where.strides, where.offset)

    out = tensor("out", case.result) if case.out else None
    c = None if arrays.c is None else out if case.in_place else tensor("c", case.c or ())
    got = call(case, tensor("a", case.a), tensor("b", case.b), c, out)
    assert isinstance(got, torch.Tensor)
    assert got.is_contiguous() if out is None else got is out
    if out is not None:
        arrays.flats["out"][...] = flats["out"].cpu()
    arrays.check(got.cpu().numpy())


def check_call(pick: Pick) -> None:
    """Draw a case and make the public call on its NumPy arrays."""
    case = draw(pick, layouts=(*LAYOUTS, "flipped"))
    arrays = make(case)
    got = call(case, arrays.a, arrays.b, arrays.c, arrays.out)
    assert arrays.out is None or got is arrays.out
    arrays.check(got)
