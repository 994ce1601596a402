"""torch's own test/test_linalg.py, the tests of functions that are rerouted, in float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from peakgemm.integrations import torch_use

from .outcomes import Outcome, Recorder, beside
from .torch_opinfo import all_sizes, left_to_torch

WHICH = "(cholesky or triangular or addmm or addbmm or baddbmm or bmm or matmul or mm or multi_dot or tensordot)"


def run(file: Path, precision: str, on_gpu: bool, products: bool = True) -> list[Outcome]:
    """The tests in ``file``, after torch's own run of each: the file may be another version's."""
    all_sizes()
    calls: Counter[str] = Counter()
    device = "CUDA" if on_gpu else "CPU"
    block = torch_use.Use(precision, device, torch_use._run if products else left_to_torch, linalg=True)

    @contextmanager
    def rerouted() -> Iterator[None]:
        with block as ran:
            before = ran.calls.copy()
            try:
                yield
            finally:
                calls.update(ran.calls - before)

    found = []
    for around in (nullcontext, rerouted):
        recorder = Recorder(f"torch test_linalg.py, {precision}", calls, "no call of it reaches peakgemm",
                            around=around)
        pytest.main([str(file), "-k", f"{WHICH} and (float32 or complex64) and Linalg{device}", "-q",
                     "-p", "no:cacheprovider"], plugins=[recorder])
        found.append(recorder.outcomes)
    return beside(*found, "torch itself fails it")
