"""The GPU and the peer that a command measures with, or none and why."""

from __future__ import annotations

from ..errors import MissingComponent
from ..runtime.device import Gpu
from ..tools.bench.peers import Peer, find_peer
from .console import err


def measuring(gpu: Gpu | None, arch: str) -> tuple[Gpu | None, Peer | None]:
    """``gpu`` where it is of ``arch``, and a cuBLAS to compare with; a missing cuBLAS is told and done without."""
    if gpu is None or gpu.arch != arch:
        return None, None
    try:
        return gpu, find_peer()
    except MissingComponent as error:
        err.print(f"Not timed: {error}", markup=False)
        return gpu, None
