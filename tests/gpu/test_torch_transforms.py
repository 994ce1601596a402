"""Every call under every transform and tracer of torch, on CUDA tensors: the table of tests/unit on a GPU."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import torch_transforms  # noqa: E402


@pytest.mark.parametrize(("recorder", "transform"), [
    pytest.param(*cell, marks=[] if cell[0] == "eager" else [pytest.mark.exhaustive])
    for cell in torch_transforms.cells()])
def test_cell(recorder: str, transform: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not torch_transforms.check("cuda", recorder, transform, torch_transforms.recorded_calls(recorder))
