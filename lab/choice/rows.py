"""Products with the times of their candidates: kept compactly, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from peakgemm.errors import InvalidValue
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.library import EMULATED
from peakgemm.kernels.library import KERNELS as IEEE
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem, varied
from peakgemm.tools.bench.suites import Case, cases

SCHEME = SCHEMES["fp16x3"]  # the one that "emulated" takes, and that is timed
Row = tuple[Kernel, Config]


def label(kernel: Kernel) -> str:
    """A kernel of the library by a name that no other has: several of a scheme share theirs."""
    return f"{kernel.name} {kernel.family.name}".rstrip()


KERNELS = {label(kernel): kernel for kernel in (*IEEE, *EMULATED)}


@dataclass(frozen=True, slots=True)
class Measured:
    """A product with the microseconds of its candidates: of all rounds, those of the second time where there was one.
    """

    case: Case
    samples: Mapping[Row, Sequence[float]]
    held_out: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """A product with the median microseconds of its candidates."""

    case: Case
    problem: Problem
    us: Mapping[Row, float]
    held_out: bool

    def of(self, tensor: bool) -> list[Row]:
        """The candidates for tensor cores, or the others, the fastest first."""
        return sorted((row for row in self.us if (row[0].family.scheme is not None) is tensor), key=self.us.__getitem__)


def fields_of(measured: Sequence[Measured]) -> dict[str, Any]:
    """The fields of a record. ``programs``: configurations with K unshared, once; of each product, for each program
    (its index, as text): parts of K and median microseconds, in turn."""
    index: dict[Row, int] = {}
    rows = []
    for product in measured:
        by_program: dict[str, list[float]] = {}
        for (kernel, config), samples in product.samples.items():
            program = index.setdefault((kernel, varied(config, split=1)), len(index))
            by_program.setdefault(str(program), []).extend((config.split, float(f"{median(samples):.4g}")))
        case = product.case
        rows.append({"candidates": by_program, "held_out": product.held_out, "shape": [case.m, case.n, case.k],
                     "layout": case.layout, "batch": case.batch})
    return {"programs": [{"kernel": label(kernel), "config": config.set_fields()} for kernel, config in index],
            "rungs": rows}


def rows_of(record: Mapping[str, Any]) -> list[Rows]:
    """The products of a record of `measure`.

    Raises:
        InvalidValue: it is no such record, or names a kernel or a field of a configuration that is none any more.
    """
    try:
        programs = [(KERNELS[each["kernel"]], KERNELS[each["kernel"]].read(each["config"]))
                    for each in record["programs"]]
        found = []
        for row in record["rungs"]:
            m, n, k = row["shape"]
            (case,) = cases(f"{m}x{n}x{k}:{row['layout']}*{row['batch']}")
            us: dict[Row, float] = {}
            for program, flat in row["candidates"].items():
                kernel, config = programs[int(program)]
                us |= {(kernel, varied(config, split=split) if split != config.split else config): each
                       for split, each in zip(flat[::2], flat[1::2], strict=True)}
            found.append(Rows(case, case.problem()[0], us, row["held_out"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"these are no candidates' times of this version ({type(error).__name__}: {error}); measure "
                           "them anew with: python -m lab.choice measure --json FILE") from None
    return found
