"""Shared by tests of the compiler and of its cache, and by those of large kernels on the simulator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty compile cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVRTC's compilations counted, a cache hit being none; ``meanwhile`` runs during each."""
    import cuda.core

    seen = SimpleNamespace(count=0, meanwhile=lambda: None)

    class Program(cuda.core.Program):
        def compile(self, *args, **kwargs):
            seen.count += 1
            seen.meanwhile()
            return super().compile(*args, **kwargs)

    monkeypatch.setattr(cuda.core, "Program", Program)
    return seen


@pytest.fixture
def many_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many blocks of large kernels run together, in two thirds of the time: what a kernel of hundreds of
    registers has in the processor's cache matters less than how many lanes there are for each call of NumPy."""
    monkeypatch.setattr("peakgemm.simulator.launch.LEAST", 4096)
