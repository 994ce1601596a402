"""``peakgemm doctor``: what this machine has, what is missing, and the command that mends it."""

from __future__ import annotations

from ..bench.peers import find_peer
from ..errors import PeakgemmError
from ..inspect.sass import find_nvdisasm
from ..runtime import cache, device
from ..runtime.compile import nvrtc_version
from .console import out


def command() -> None:
    """What is here, what is missing, and how to mend it."""
    rows = []
    for what, look in (("NVRTC (compile)", nvrtc_version), ("nvdisasm (SASS facts)", find_nvdisasm),
                       ("GPU and driver (run)", _gpu), ("cuBLAS (compare)", _peer)):
        try:
            rows.append([what, "yes", look()])
        except PeakgemmError as error:
            rows.append([what, "no", str(error)])
    rows.append(["compile cache", "yes", str(cache.folder())])
    for what, here, detail in rows:
        out.print(f"{what:22} {here:4} {detail}", markup=False)


def _gpu() -> str:
    gpu = device.require()
    return f"{gpu.name}, {gpu.arch}, {gpu.sm_count} SMs, driver for CUDA {gpu.driver}"


def _peer() -> str:
    device.require()
    return ", ".join(f"{name} {version}" for name, version in find_peer().versions().items())
