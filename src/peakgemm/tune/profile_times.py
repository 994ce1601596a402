"""The times that a profile is fitted to: measured within a budget, written to a record, and read from one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..bench.suites import Case, cases
from ..errors import InvalidValue
from ..kernels.registry import Kernel
from ..problem import Config, Problem
from .profile_plan import KERNELS, Planned, label
from .stopwatch import Done, Stopwatch


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

    @property
    def fastest_us(self) -> float:
        """The least time of all."""
        return min(row.us for row in self.rows)


def measure(planned: Sequence[Planned], stopwatch: Stopwatch, deadline: float, done: Done) -> Iterator[dict[str, Any]]:
    """Rows of a record, one for each product, until a moment of `time.monotonic`.

    A product that does not run at all, for want of memory say, is left out.
    """
    for one in planned:
        if time.monotonic() < deadline:
            try:
                found = stopwatch.times(one.problem, one.rows)
            except Exception:  # whatever a driver or an allocator raises: the other products still run
                found = []
            timed = [{"kernel": label(kernel), "config": config.to_json(), "samples_us": samples}
                     for (kernel, config), samples in zip(one.rows, found, strict=bool(found)) if samples]
            if timed:
                yield {"timed": timed, "shape": [one.case.m, one.case.n, one.case.k], "layout": one.case.layout,
                       "batch": one.case.batch}
        done(one.case.size)


def read(path: Path) -> tuple[Mapping[str, Any], list[TimedProduct]]:
    """A record of times, and the products in it.

    Raises:
        InvalidValue: it cannot be read, or is no such record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{path} holds no times ({error}); make them with: peakgemm tune --profile --json TIMES.json"
                           ) from None
    if not isinstance(record, dict) or not record.get("device") or not any("timed" in row for row in
                                                                        record.get("rungs", ())):
        raise InvalidValue(f"{path} is no record of kernels' times on a GPU; make one with: peakgemm tune --profile "
                           "--json TIMES.json")
    return record, products(record["rungs"])


def products(rows: Sequence[Mapping[str, Any]]) -> list[TimedProduct]:
    """The products of a record's rows.

    Raises:
        InvalidValue: a row names no kernel or configuration that there is.
    """
    found = []
    for row in rows:
        m, n, k = row["shape"]
        (case,) = cases(f"{m}x{n}x{k}:{row['layout']}*{row['batch']}")
        try:
            timed = tuple(Timed(KERNELS[one["kernel"]], Config(**one["config"]), median(one["samples_us"]))
                          for one in row["timed"])
        except (KeyError, TypeError) as error:
            raise InvalidValue(f"{case.size}: unknown kernel or field {error}; these times are of another version: "
                               "measure them anew") from None
        found.append(TimedProduct(case, case.problem()[0], timed))
    return found
