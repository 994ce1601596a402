"""The model of register reads against the GPU at hand."""

from __future__ import annotations

import pytest

from lab.registers.clock import Clock
from lab.registers.kinds import FFMA_KINDS, NAMED, drawn, from_pattern
from lab.registers.streams import ARCH, Bed, predicted, text
from peakgemm.runtime import device

pytestmark = pytest.mark.gpu


def test_streams_take_what_the_model_says() -> None:
    gpu = device.require()
    if gpu.arch != ARCH:
        pytest.skip(f"streams are for {ARCH}")
    bed = Bed.make()
    streams = [from_pattern(pattern, bed) for _, pattern, _ in NAMED]
    streams += [stream for kind, stream in drawn(60, 7, bed) if kind.name in FFMA_KINDS]
    with Clock(gpu, bed) as clock:
        for stream in streams:
            assert clock.cycles(stream)[0] == pytest.approx(predicted(stream), abs=0.08), text(stream)
