"""Where the time of a product of host arrays goes, device by device: the accounts of a recorded timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from lab.scale.spans import Span

PARTS = 40  # of the whole time, in each of which a kind's share is told

Interval = tuple[float, float]


def accounts(spans: Sequence[Span], seconds: float) -> list[dict[str, Any]]:
    """For each device what took how long, in the record's form.

    ``kinds``: for each kind of span how many there were, their bytes, ``busy_ms`` during which at least one was under
    way, ``sum_ms`` of all, GB/s while busy, and ``shares``, how much of each of `PARTS` equal parts of the time was
    busy. ``idle``: when the device had no product to run: before the first, between, after the last; ``waiting``: what
    the thread that launches waited for in the time between.
    """
    found = []
    for device in sorted({span.device for span in spans}):
        own = [span for span in spans if span.device == device]
        kinds: dict[str, Any] = {}
        for what in dict.fromkeys(span.what for span in own):
            these = [span for span in own if span.what == what]
            busy = united((span.start, span.end) for span in these)
            lasted, size = total(busy), sum(span.bytes for span in these)
            kinds[what] = {
                "count": len(these), "bytes": size, "busy_ms": 1e3 * lasted,
                "sum_ms": 1e3 * sum(span.end - span.start for span in these),
                "gbs": size / lasted / 1e9 if lasted else 0.0,
                "shares": [round(total(met(busy, [(seconds * i / PARTS, seconds * (i + 1) / PARTS)])) * PARTS / seconds,
                                 2) for i in range(PARTS)]}
        computing = united((span.start, span.end) for span in own if span.what in ("product", "split"))
        row: dict[str, Any] = {"device": device, "ms": 1e3 * seconds, "kinds": kinds}
        if computing:
            first, last = computing[0][0], computing[-1][1]
            between = [(low, high) for (_, low), (high, _) in pairwise(computing)]
            row["idle"] = {"before_ms": 1e3 * first, "between_ms": 1e3 * total(between),
                           "after_ms": 1e3 * (seconds - last)}
            row["waiting"] = {
                what: 1e3 * total(met(between, united((span.start, span.end) for span in own if span.what == what)))
                for what in kinds if what.startswith("wait for") and what != "wait for a buffer"}
        found.append(row)
    return found


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals, rising, that cover the same."""
    found: list[Interval] = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def met(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Where intervals of both are."""
    found, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            found.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def total(intervals: Iterable[Interval]) -> float:
    """Seconds."""
    return sum(high - low for low, high in intervals)
