"""The plots of the project's pages, drawn from records, with the theme of the reader's system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..bench.variants import Variant
from . import charts
from .data import Data, Row, Source, rows_of
from .figures import by_variant, error_panels, ladder_at, library_at, peak_tflops, rung_speed, variant_and_suite
from .svg import Chart

WIDTH = 860


def ladder(sources: Sequence[Source]) -> Chart:
    """The whole climb at 4096: rungs, then the library's own products."""
    data = Data(tuple(sources))
    at = ladder_at(data)
    assert at is not None and data.device is not None
    _, size, rows = at
    own = [one[:3] for one in library_at(data, (size,) * 3)]
    return charts.climb(rows, own, rows[-1]["cublas_tflops"], peak_tflops(data.device),
                        f"TFLOPS at M = N = K = {size}, {data.device['name']}", WIDTH)


def sizes(sources: Sequence[Source]) -> Chart:
    """All rungs over M = N with K = 1024."""
    return rung_speed(sources[0], WIDTH)


def bench(rows: Sequence[Row], title: str) -> Chart:
    """Ratios to cuBLAS of the rows that were timed, by suite and variant."""
    return charts.ratios(by_variant(rows), variant_and_suite, title, WIDTH)


def bench_of(source: Source, precision: str) -> Chart:
    """Of a record the rows of one precision, operands split in the time measured."""
    rows = [row for row in source.rows if Variant.of(row) == Variant(precision)]
    return bench(rows, f"{source.record['device']['name']}, {precision}: time of cuBLAS FP32 over ours")


def errors(rows: Sequence[dict[str, Any]], title: str) -> Chart | None:
    """Largest error against K: of `long-k`, without any of `random`; none where there is neither."""
    for test in ("long-k", "random"):
        panels, least = error_panels(rows_of({"rungs": rows}), test)
        if panels:
            return charts.errors(panels, least, title, WIDTH)
    return None


def accuracy(source: Source) -> Chart:
    """Error against K of all contenders."""
    found = errors([dict(row) for row in source.rows], f"{source.record['device']['name']}: largest error against K")
    assert found is not None
    return found
