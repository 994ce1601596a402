"""What the first product of a process may import: the time is the caller's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A library of GPU arrays that stands in, a driver that says yes.
FIRST_CALL = """
import sys
import numpy as np
import stand_in
from peakgemm.calls import launch
from peakgemm.kernels import shipped
from peakgemm.calls.request import Request
from peakgemm.runtime import device, driver

launches = []

class Driver:
    def __getattr__(self, call):
        return lambda *args: launches.append(call) or 0 if call.startswith("cuLaunch") else 0

    __getitem__ = __getattr__

driver.library = driver.gil_library = Driver
device.require = lambda index: stand_in.GPU
if sys.argv[1] == "shipped":
    from peakgemm.runtime.compile import Compiled
    shipped.find = lambda name, entry, arch: Compiled(entry, arch, "cubin", b"")
a, b = (np.ones((64, 64), np.float32) for _ in range(2))
launch.on_device(stand_in.StandIn(), 0, Request(a, b))
assert launches, "nothing was launched"
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"cuda", "email", "rich", "typer"}),
      *[name for name in sys.modules if name == "peakgemm.sass"])
"""


def imported(kernel: str) -> list[str]:
    """Of what takes long to import, what a process has that made one product (email: of importlib.metadata)."""
    done = subprocess.run([sys.executable, "-c", FIRST_CALL, kernel], capture_output=True, text=True,
                          cwd=Path(__file__).parents[1] / "support")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_kernel_that_is_there_needs_neither_compiler_nor_instruments(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the package, or compiled by an earlier process. cuda.core and cuda.bindings take a tenth of a second."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path / "empty"))
    assert imported("shipped") == []
    monkeypatch.setenv("PEAKGEMM_SHIPPED", "0")
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path))
    assert "cuda" in imported("compiled")
    assert imported("compiled") == []
    assert imported("shipped") == []  # with figures of its loop, as those of a wheel have
