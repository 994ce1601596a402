"""Shared by all tests: the helpers' folder, the gpu marker and its skip, fixtures of the compiler and its cache."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's: of many small products threads take most of the time
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX's: three quarters of a GPU in each process
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
gc.set_threshold(50_000, 20, 20)  # of the simulator's programs there are millions of objects, which the tests keep


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(items):
    from peakgemm.runtime.device import reason_without_gpu
    from seldom import is_seldom

    reason = None
    for item in items:
        if is_seldom(item.nodeid):
            item.add_marker(pytest.mark.exhaustive)
        if "/gpu/" in str(item.path).replace(os.sep, "/"):
            item.add_marker(pytest.mark.gpu)
            reason = reason or reason_without_gpu()
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty compile cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVRTC's compilations counted, a cache hit being none; ``meanwhile`` runs during each."""
    from peakgemm.runtime import nvrtc

    seen, real = SimpleNamespace(count=0, meanwhile=lambda: None), nvrtc.build

    def build(*args, **kwargs):
        seen.count += 1
        seen.meanwhile()
        return real(*args, **kwargs)

    monkeypatch.setattr(nvrtc, "build", build)
    return seen


@pytest.fixture
def many_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many blocks of large kernels run together, in two thirds of the time: what a kernel of hundreds of
    registers has in the processor's cache matters less than how many lanes there are for each call of NumPy."""
    monkeypatch.setattr("peakgemm.tools.simulator.launch.LEAST", 4096)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the logger is told from warnings up, in order."""
    from peakgemm.runtime import cache

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                messages.append(record.getMessage())

    messages: list[str] = []
    handler = Collect()
    cache.log.addHandler(handler)
    yield messages
    cache.log.removeHandler(handler)
