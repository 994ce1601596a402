"""What is recorded of a product of host arrays, and the accounts of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lab.scale.spans import Span, recorded
from lab.scale.timeline import accounts
from lazy_driver import Devices, each_begins, present
from peakgemm.calls.host import multi_gpu
from peakgemm.calls.host.grid import Grid, cuts
from peakgemm.calls.request import Request
from peakgemm.runtime import transfer


def test_accounts() -> None:
    spans = [Span(0, "stage", 0, 2, 4 * 10**9), Span(0, "stage", 1, 3, 2 * 10**9), Span(0, "product", 3, 5, 0),
             Span(0, "wait for a panel", 5, 7.5, 0), Span(0, "product", 8, 9, 0), Span(1, "copy in", 0, 10, 10**9)]
    first, second = accounts(spans, 10)
    stage = first["kinds"]["stage"]
    assert (stage["count"], stage["bytes"], stage["busy_ms"], stage["sum_ms"], stage["gbs"]) == (
        2, 6 * 10**9, 3000, 4000, 2.0)
    assert stage["shares"] == [1.0] * 12 + [0.0] * 28
    assert first["idle"] == {"before_ms": 3000, "between_ms": 3000, "after_ms": 1000}
    assert first["waiting"] == {"wait for a panel": 2500}
    assert second["device"] == 1 and "idle" not in second


@pytest.mark.parametrize("count", [1, 2])
def test_a_product_is_recorded(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(transfer, "LEAST_BYTES", 512)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((70, 33), (33, 90)))
    out, tiles = np.empty((70, 90), np.float32), Grid(cuts(70, 16), cuts(90, 16))
    with present(monkeypatch, Devices(count)) as devices:
        with recorded(range(count)) as line, monkeypatch.context() as patch:
            each_begins(patch, count)
            multi_gpu.run(Request(a, b, out=out), devices.gpus, tiles)
        assert (out == a @ b).all()
        kinds = Counter(span.what for span in line.spans)
        assert kinds["product"] == len(tiles.tiles()) and {span.device for span in line.spans} == set(range(count))
        moved = Counter[str]()
        for span in line.spans:
            assert span.end >= span.start
            moved[span.what] += span.bytes
        assert moved["copy in"] == moved["stage"] == devices.copied["in"]
        assert moved["copy out"] == moved["unstage"] == devices.copied["out"] == out.nbytes
        assert moved["copy from a peer"] == devices.copied["peer"]
        multi_gpu.run(Request(a, b, out=out), devices.gpus, tiles)  # nothing more is recorded
        assert sum(kinds.values()) == len(line.spans)
    assert devices.events == {}
