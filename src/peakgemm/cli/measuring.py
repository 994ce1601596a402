"""The GPU and the peer that a command measures with, or none and why; the record of what it measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MissingComponent
from ..runtime import device
from ..runtime.architectures import architecture
from ..runtime.device import Gpu
from ..tools.bench import records
from ..tools.bench.peers import Peer, find_peer
from .console import err, out


def measuring(gpu: Gpu | None, arch: str) -> tuple[Gpu | None, Peer | None]:
    """``gpu`` where it is of ``arch``, and a cuBLAS to compare with; a missing cuBLAS is told and done without."""
    if gpu is None or gpu.arch != arch:
        return None, None
    try:
        return gpu, find_peer()
    except MissingComponent as error:
        err.print(f"Not timed: {error}")
        return gpu, None


def why_not(gpu: Gpu | None, arch: str) -> str:
    """Why nothing is timed for ``arch``."""
    if gpu is None:
        return str(device.reason_without_gpu())
    return f"the GPU is {gpu.arch}, not {arch}" if gpu.arch != arch else "no cuBLAS to compare with"


def chosen_for(gpu: Gpu | None, arch: str) -> tuple[int, str]:
    """SMs and name of the GPU that configurations are chosen for: the one at hand where it is of ``arch``."""
    return (gpu.sm_count, gpu.name) if gpu and gpu.arch == arch else (architecture(arch).gpu_sms, "")


def keep(path: Path | None, record: Mapping[str, Any], what: str = "Record written") -> None:
    """Write a record where ``--json`` asks for one, and say so."""
    if path is not None:
        records.write(path, record)
        out.print(f"{what} to {path}")


def keep_found(path: Path | None, facts: list[dict[str, Any]], arch: str | None = None) -> None:
    """Write what a command found, of an architecture or else on this machine, where ``--json`` asks for it."""
    if path is not None:
        gpu = None if arch else device.find()
        keep(path, records.record(gpu, arch or (gpu.arch if gpu else "sm_90"), [{"found": facts}]), "Written")
