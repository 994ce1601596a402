"""The plots of the project's pages, drawn from records, with the theme of the reader's system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..bench.variants import Variant
from . import charts
from .data import Data, Row, Source, rows_of
from .figures import by_variant, error_panels, ladder_at, library_at, peak_tflops, rung_speed, variant_and_suite
from .svg import Chart

WIDTH = 860  # of a page on a desk


def ladder(sources: Sequence[Source], width: int = WIDTH) -> Chart:
    """The whole climb at 4096: rungs, then the library's own products."""
    data = Data(tuple(sources))
    at = ladder_at(data)
    assert at is not None and data.device is not None
    _, size, rows = at
    own = [one[:3] for one in library_at(data, (size,) * 3)]
    return charts.climb(rows, own, rows[-1]["cublas_tflops"], peak_tflops(data.device),
                        f"TFLOPS at M = N = K = {size}, {data.device['name']}", width)


def sizes(sources: Sequence[Source], width: int = WIDTH) -> Chart:
    """All rungs over M = N with K = 1024."""
    return rung_speed(sources[0], width)


def bench(rows: Sequence[Row], title: str, width: int = WIDTH) -> Chart:
    """Ratios to cuBLAS of the rows that were timed, by suite and variant."""
    return charts.ratios(by_variant(rows), variant_and_suite, title, width)


def bench_of(source: Source, precision: str, width: int = WIDTH) -> Chart:
    """Of a record the rows of one precision, operands split in the time measured."""
    rows = [row for row in source.rows if Variant.of(row) == Variant(precision)]
    return bench(rows, f"{source.record['device']['name']}, {precision}: time of cuBLAS FP32 over ours", width)


def errors(rows: Sequence[dict[str, Any]], title: str, width: int = WIDTH) -> Chart | None:
    """Largest error against K: of `long-k`, without any of `random`; none where there is neither."""
    for test in ("long-k", "random"):
        panels, least = error_panels(rows_of({"rungs": rows}), test)
        if panels:
            return charts.errors(panels, least, title, width)
    return None


def accuracy(source: Source, width: int = WIDTH) -> Chart:
    """Error against K of all contenders."""
    found = errors([dict(row) for row in source.rows], f"{source.record['device']['name']}: largest error against K",
                   width)
    assert found is not None
    return found
