"""What the first product of a process may import: the time is the caller's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# A library of GPU arrays that stands in, a driver that says yes, a cubin that comes with the package.
FIRST_CALL = """
import sys
import numpy as np
import stand_in
from peakgemm import dispatch
from peakgemm.kernels import shipped
from peakgemm.request import Request
from peakgemm.runtime import device, driver
from peakgemm.runtime.compile import Compiled

launches = []

class Driver:
    def __getattr__(self, call):
        return lambda *args: launches.append(call) or 0 if call.startswith("cuLaunch") else 0

    __getitem__ = __getattr__

driver.library = Driver
device.require = lambda index: stand_in.GPU
shipped.find = lambda name, entry, arch: Compiled(entry, arch, "cubin", b"")
a, b = (np.ones((64, 64), np.float32) for _ in range(2))
dispatch.on_device(stand_in.StandIn(), 0, Request(a, b))
assert launches, "nothing was launched"
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"cuda", "rich", "typer"}))
"""


def test_a_kernel_of_the_package_needs_no_cuda_core() -> None:
    """Neither cuda.core nor cuda.bindings: together they take a tenth of a second."""
    found = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True,
                           cwd=Path(__file__).parent.parent)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == []
