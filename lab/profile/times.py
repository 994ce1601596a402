"""The times that a profile is fitted to: measured within a budget, written to a record, and read from one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lab.profile.plan import KERNELS, Planned, label
from lab.profile.stopwatch import Done, Stopwatch
from peakgemm.errors import InvalidValue
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem
from peakgemm.tools.bench.suites import Case, cases

log = logging.getLogger("peakgemm")
Measured = tuple[Case, list[tuple[Kernel, Config, list[float]]]]


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel's time for a product: the median of its rounds, in microseconds."""

    kernel: Kernel
    config: Config
    us: float


@dataclass(frozen=True, slots=True)
class TimedProduct:
    """A product with the times of several kernels."""

    case: Case
    problem: Problem
    rows: tuple[Timed, ...]


def measure(planned: Sequence[Planned], stopwatch: Stopwatch, deadline: float, done: Done) -> Iterator[Measured]:
    """The rounds' microseconds of each product's kernels, until a moment of `time.monotonic`.

    A product that does not run at all, for want of memory say, is left out.
    """
    for one in planned:
        if time.monotonic() < deadline:
            try:
                found = stopwatch.times(one.problem, one.rows)
            except Exception:  # whatever a driver or an allocator raises: the other products still run
                log.debug("%s does not run", one.case.size, exc_info=True)
                found = []
            ran = [(*row, samples) for row, samples in zip(one.rows, found, strict=bool(found)) if samples]
            if ran:
                yield one.case, ran
        done(one.case.size)


def fields_of(measured: Sequence[Measured]) -> dict[str, Any]:
    """The fields of a record: kernels and configurations once, as ``programs``, and a row for each product."""
    programs: dict[tuple[Kernel, Config], int] = {}
    rows = [{"timed": [{"program": programs.setdefault((kernel, config), len(programs)),
                        "samples_us": [float(f"{us:.5g}") for us in samples]}
                       for kernel, config, samples in ran],
             "shape": [case.m, case.n, case.k], "layout": case.layout, "batch": case.batch} for case, ran in measured]
    return {"programs": [{"kernel": label(kernel), "config": config.set_fields()} for kernel, config in programs],
            "rungs": rows}


def read(path: Path) -> tuple[Mapping[str, Any], list[TimedProduct]]:
    """A record of times, and the products in it.

    Raises:
        InvalidValue: it cannot be read, or is no such record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{path} holds no times ({error}); make them with: python -m lab.profile --json TIMES.json"
                           ) from None
    if not isinstance(record, dict) or not record.get("device") or not any("timed" in row for row in
                                                                        record.get("rungs", ())):
        raise InvalidValue(f"{path} is no record of kernels' times on a GPU; make one with: python -m lab.profile "
                           "--json TIMES.json")
    return record, products(record)


def products(record: Mapping[str, Any]) -> list[TimedProduct]:
    """The products of a record.

    Raises:
        InvalidValue: it names a kernel or a field of a configuration that there is not.
    """
    try:
        programs = [(KERNELS[one["kernel"]], KERNELS[one["kernel"]].read(one["config"])) for one in record["programs"]]
    except (KeyError, TypeError) as error:
        raise InvalidValue(f"these times are of another version, of a kernel or field {error}: measure them anew, "
                           "with: python -m lab.profile --json TIMES.json") from None
    found = []
    for row in record["rungs"]:
        m, n, k = row["shape"]
        (case,) = cases(f"{m}x{n}x{k}:{row['layout']}*{row['batch']}")
        ran = [(*programs[one["program"]], median(one["samples_us"])) for one in row["timed"]]
        found.append(TimedProduct(case, case.problem()[0], tuple(Timed(*one) for one in ran)))
    return found
