"""The suite: which tests on which data and sizes, run on every contender beside a reference, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from ...errors import InvalidValue, MissingComponent
from ..bench.errors import bound
from ..bench.records import first_line
from . import contenders
from .arrays import Arrays, find
from .contenders import Gemm
from .families import FAMILIES, single
from .fixed import EXACT, STRUCTURE, Finding, Shape, Test, repeat
from .measure import Exact, Figures
from .special import CASES, SCALED, SHAPES, special
from .verdict import FAIL, PASS, SKIPPED, Row, against, of_finding, slopes

TESTS = ("random", "long-k", "scaled", "structure", "exact", "special", "repeat")
LONG_FAMILIES = ("normal", "uniform", "exp4")  # of the products with a long K, unless some are asked for
SCALED_FAMILIES = ("normal", "uniform")
FIXED: dict[str, dict[str, Test]] = {
    "structure": STRUCTURE, "exact": EXACT, "special": {case: partial(special, case=case) for case in CASES},
    "repeat": {"repeat": repeat}}
ALPHA, BETA = -0.75, 1.5
SIDE = 256  # M and N of `long-k`
POOL = 2**14  # elements judged, at least: of smaller sizes several draws are pooled
SMALLEST, GREATEST, DEEPEST = 2, 2**14, 2**20  # of N, of N, of K


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found: a row for each test, data, size and contender (docs/accuracy.md names its fields).

    ``reference``: the name of the one compared with; ``unavailable``: contenders that could not run here, and why.
    """

    reference: str
    contenders: tuple[str, ...]
    place: str
    seed: int
    rows: list[Row] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)

    @property
    def judged(self) -> list[Row]:
        """Rows of the contenders, and of the reference only where it is one of them; without what was skipped."""
        return [row for row in self.rows if row["contender"] in self.contenders and row["verdict"] != SKIPPED]

    @property
    def failures(self) -> list[Row]:
        """Those of `judged` that did not pass."""
        return [row for row in self.judged if row["verdict"] != PASS]


@dataclass(frozen=True, slots=True)
class Step:
    """One problem that all contenders are put to."""

    test: str
    family: str
    shape: Shape
    run: Callable[[Step, list[Gemm], int], Iterator[Row]]

    @property
    def label(self) -> str:
        """For a progress bar."""
        return f"{self.family} {'x'.join(map(str, self.shape))}"

    def seed(self, base: int) -> int:
        """The same whatever else is run."""
        return crc32(f"{base} {self.test} {self.family} {self.shape}".encode())


def judge(*gemms: str | Callable[..., Any], reference: str | Callable[..., Any] | None = None,
          sizes: Sequence[int] | None = None, ks: Sequence[int] | None = None, families: Sequence[str] | None = None,
          tests: Sequence[str] | None = None, seed: int = 0, host: bool = False,
          progress: Callable[[int], Callable[[str], None]] | None = None) -> Report:
    """Put GEMMs to the suite, on the same data as a reference.

    Args:
        gemms: names (`contenders.NAMES`, ``package.module:function``) or functions, ``(a, b) -> c`` or ``(a, b, c,
            alpha, beta) -> result``: float32 matrices ``(M, K)``, ``(K, N)``, ``(M, N)``, NumPy arrays in the host's
            memory, or torch tensors where there are torch and a GPU.
        reference: likewise; None: cuBLAS in plain FP32 on a GPU, else NumPy's BLAS.
        sizes: N of the square products. None: powers of two from 16 to 4096, on the host to 512.
        ks: K of the 256 x 256 x K products. None: powers of four from 64 to 65536, on the host to 16384.
        families: of `families.FAMILIES`; None: all.
        tests: of `TESTS`; None: all.
        seed: of all data.
        host: NumPy arrays, also where there is a GPU.
        progress: told how many steps there are, gives what is called with each step's name when it is done.

    Raises:
        InvalidValue: an unknown name, a size out of bounds or too large for the memory.
        MissingComponent: the reference, or none of the contenders, can run here.
    """
    arrays = find(host)
    steps = plan(arrays, sizes, ks, families, tests)
    standard = contenders.make(reference or ("cublas" if arrays.name == "torch" else "numpy"), arrays)
    able: list[Gemm] = []
    unavailable: dict[str, str] = {}
    for what in dict.fromkeys(gemms):
        try:
            able.append(contenders.make(what, arrays))
        except MissingComponent as error:
            unavailable[str(what)] = str(error)
    if not able:
        raise MissingComponent("nothing to judge: " + ("; ".join(f"{name}: {why}" for name, why in unavailable.items())
                                                       or "name a contender"))
    names = tuple(gemm.name for gemm in able)
    report = Report(standard.name, names, arrays.name, seed, [], unavailable)
    panel = [standard, *(gemm for gemm in able if gemm.name != standard.name)]
    done = progress(len(steps)) if progress else None
    for step in steps:
        report.rows.extend(_run(step, panel, seed))
        if done:
            done(step.label)
    report.rows.extend(slopes(report.rows))
    return report


def _run(step: Step, panel: list[Gemm], seed: int) -> list[Row]:
    try:
        with np.errstate(all="ignore"):  # overflow and NaN are results here
            return list(step.run(step, panel, step.seed(seed)))
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # NumPy's, torch's
            raise InvalidValue(f"{step.test}, {step.label}: operands and FP64 reference do not fit in memory; leave "
                               "this size out") from None
        raise


def plan(arrays: Arrays, sizes: Sequence[int] | None, ks: Sequence[int] | None, families: Sequence[str] | None,
         tests: Sequence[str] | None) -> list[Step]:
    """The steps of a choice; None: what suits the arrays' memory.

    Raises:
        InvalidValue: see `judge`.
    """
    on_gpu = arrays.name == "torch"
    sizes = sizes or [2**i for i in range(4, 13 if on_gpu else 10)]
    ks = ks or [4**i for i in range(3, 9 if on_gpu else 8)]
    for name, values, most in (("size", sizes, GREATEST), ("K", ks, DEEPEST)):
        for value in values:
            if not SMALLEST <= value <= most:
                raise InvalidValue(f"{name} = {value} must lie in {SMALLEST}..{most}")
    known = {"family": (families, tuple(FAMILIES)), "test": (tests, TESTS)}
    for kind, (wanted, valid) in known.items():
        for name in wanted or ():
            if name not in valid:
                raise InvalidValue(f"unknown {kind} {name!r}; valid ones: {', '.join(valid)}")
    squares = [(n, n, n) for n in dict.fromkeys(sizes)]
    deep = [(SIDE, SIDE, k) for k in dict.fromkeys(ks)]
    compared: dict[str, tuple[Sequence[str], Sequence[Shape]]] = {
        "random": (families or tuple(FAMILIES), squares), "long-k": (families or LONG_FAMILIES, deep),
        "scaled": ([family for family in SCALED_FAMILIES if not families or family in families], squares)}
    steps: list[Step] = []
    for test in (test for test in TESTS if not tests or test in tests):
        if test in compared:
            names, shapes = compared[test]
            steps += [Step(test, family, shape, _compare) for family in names for shape in shapes]
        else:
            steps += [Step(test, name, shape, partial(_fixed, check)) for name, check in FIXED[test].items()
                      for shape in (SHAPES if test == "special" else squares)]
    return steps


def _fixed(check: Test, step: Step, panel: list[Gemm], seed: int) -> Iterator[Row]:
    """A test with a bound of its own."""
    for gemm in panel:
        if step.test == "special" and step.family in SCALED and gemm.full is None:
            yield _row(step, gemm, SKIPPED, "takes no alpha and beta")
            continue
        try:
            finding: Finding = check(np.random.default_rng(seed), step.shape, gemm)
        except Exception as error:  # whatever somebody's function raises: the others still run
            yield _row(step, gemm, FAIL, first_line(error))
            continue
        yield {**_row(step, gemm, *of_finding(finding)), "figure": finding.figure, "limit": finding.limit,
               "unit": finding.unit}


def _compare(step: Step, panel: list[Gemm], seed: int) -> Iterator[Row]:
    """A test in which the reference, first of the panel, sets the bound; small sizes are drawn several times."""
    arrays, (m, n, k) = panel[0].arrays, step.shape
    scaled = step.test == "scaled"
    draw = np.random.default_rng(seed)
    figures: dict[str, list[Figures]] = {gemm.name: [] for gemm in panel}
    rounding: list[Figures] = []
    failed = {gemm.name: "takes no alpha and beta" for gemm in panel if scaled and gemm.full is None}
    draws = -(-POOL // (m * n))
    for _ in range(draws):
        a, b = map(arrays.take, FAMILIES[step.family](draw, m, n, k))
        c = arrays.take(single(draw.standard_normal((m, n)))) if scaled else None
        exact = Exact(arrays, a, b, c, ALPHA, BETA) if scaled else Exact(arrays, a, b)
        rounding.append(exact.rounding())
        for gemm in panel:
            if gemm.name in failed:
                continue
            try:
                got = gemm.scaled(a, b, c, ALPHA, BETA) if scaled else gemm.multiply(a, b)
                figures[gemm.name].append(exact.figures(got))
            except Exception as error:  # as above
                failed[gemm.name] = first_line(error)
    least, standard = Figures.pooled(rounding), panel[0].name
    theirs = Figures.pooled(figures[standard]) if standard not in failed else None
    for gemm in panel:
        if gemm.name in failed:
            yield _row(step, gemm, SKIPPED if scaled and gemm.full is None else FAIL, failed[gemm.name])
            continue
        ours = Figures.pooled(figures[gemm.name])
        row = _row(step, gemm, *against(ours, theirs, least, bound(k)))
        row |= {"draws": draws, "max_error": ours.largest, "mean_error": ours.mean, "rowwise": ours.rowwise,
                "normwise": ours.normwise, "reference_max": theirs.largest if theirs else None,
                "reference_mean": theirs.mean if theirs else None, "rounding_max": least.largest,
                "rounding_mean": least.mean, "bound": bound(k)}
        yield row


def _row(step: Step, gemm: Gemm, verdict: str, note: str) -> Row:
    return {"test": step.test, "family": step.family, "shape": list(step.shape), "contender": gemm.name,
            "verdict": verdict, "note": note or None}
