"""lab/workload.py: that it runs, and that it tells a product that is off from one that is right."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from lab import workload as tool  # noqa: E402


class Scaled(TorchDispatchMode):
    """Products larger by a factor, and counted."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.calls = factor, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_"):
            self.calls += 1
            at = 1 if "addmm" in func._schema.name else 0
            args = (*args[:at], args[at] * self.factor, *args[at + 1:])
        return func(*args, **(kwargs or {}))


def quickly(monkeypatch: pytest.MonkeyPatch, factor: float) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by workload and products, with those of ``ieee`` off by a factor."""
    @contextmanager
    def using(products: str, linalg: bool) -> Any:
        if products == tool.TORCH:
            yield None
            return
        counts = SimpleNamespace(calls={}, fallbacks={"bmm": 1})
        with Scaled(factor) as mode:
            yield counts
        counts.calls["all"] = mode.calls

    monkeypatch.setattr(tool, "using", using)
    return {(row["workload"], row["products"]): row for row in tool.measured(["ieee"], tool.QUICK, "cpu")}


def test_equal_products_give_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = quickly(monkeypatch, 1.0)
    assert {name for name, _ in rows} == {"transformer", "cholesky", "block-cg"}
    for (name, products), row in rows.items():
        assert row["from_fp32"] == 0 and 0 < row["from_fp64"] < 1e-4
        assert row["rerouted"] > 0 if products == "ieee" else row["rerouted"] == 0
        assert row["ms"] > 0 and row["speedup"] > 0
        if name != "transformer":
            assert row["residual"] < 1e-6
        if products == "ieee":  # one a repeat, whether it is timed or not
            repeats = tool.QUICK.steps if name == "transformer" else tool.QUICK.repeats
            assert (row["fallbacks"], len(row["samples_ms"])) == (tool.WARM_UP + repeats, repeats)
    assert rows["transformer", "torch"]["losses"] == rows["transformer", "ieee"]["losses"]
    assert rows["block-cg", "torch"]["iterations"] > 1


@pytest.mark.exhaustive
def test_products_that_are_off_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = quickly(monkeypatch, 1 + 1e-3)
    for name in ("transformer", "cholesky", "block-cg"):
        right, off = rows[name, "torch"], rows[name, "ieee"]
        assert right["from_fp32"] == 0
        assert off["from_fp32"] > 1e-4 and off["from_fp64"] > 10 * right["from_fp64"]
    assert rows["cholesky", "ieee"]["residual"] > 10 * rows["cholesky", "torch"]["residual"]


