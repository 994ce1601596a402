"""NVRTC itself: which release is at hand, what it compiles for, and one compilation. It needs no driver."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from ..errors import MissingComponent
from .architectures import architecture

#: Tested releases, oldest first. `python -m lab.compilers` compiles every kernel by each of them.
TESTED = ("12.9.86", "13.0.88", "13.2.86", "13.4.92", "13.5.37")


class Built(NamedTuple):
    """What one compilation gave: cubin or PTX, the log of the compiler and of ptxas, and the symbol of the instance."""

    code: bytes
    log: str
    symbol: str


builds = 0  # of this process


def build(text: str, name: str, flags: Sequence[str], instance: str = "") -> Built:
    """Compile ``text`` by ``flags``, to PTX where they name a virtual architecture, else to a cubin. ``instance`` is an
    expression that names a kernel, which is instantiated.

    Raises:
        RuntimeError: the source is refused; the message is the compiler's log.
        MissingComponent: see `nvrtc_version`.
    """
    global builds
    nvrtc = _bindings()
    builds += 1

    def checked(answer: tuple[Any, ...]) -> Any:
        if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(nvrtc.nvrtcGetErrorString(answer[0])[1].decode())
        return answer[1] if len(answer) > 1 else None

    def content(size: Any, get: Any) -> bytes:
        buffer = bytearray(checked(size(program)))
        checked(get(program, buffer))
        return bytes(buffer)

    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, None, None))
    try:
        if instance:
            checked(nvrtc.nvrtcAddNameExpression(program, instance.encode()))
        status = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = content(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode().replace("\0", "").strip()
        if log and status[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(log)
        checked(status)
        if any("=compute_" in flag for flag in flags):
            code = content(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0")
        else:
            code = content(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        symbol = checked(nvrtc.nvrtcGetLoweredName(program, instance.encode())).decode() if instance else ""
        return Built(code, log, symbol)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def nvrtc_version() -> str:
    """NVRTC's version, ``13.4``.

    Raises:
        MissingComponent: NVRTC cannot be loaded.
    """
    try:
        _, major, minor = _bindings().nvrtcVersion()
    except Exception as error:
        raise MissingComponent(f"NVRTC cannot be loaded ({str(error).splitlines()[0]}); "
                               "run: pip install nvidia-cuda-nvrtc, then see: peakgemm doctor") from None
    return f"{major}.{minor}"


def lacking(arch: str) -> str:
    """Why the NVRTC at hand does not compile for ``arch``, and what to do; empty: it does.

    Raises:
        MissingComponent: NVRTC cannot be loaded.
    """
    number, version = architecture(arch).number, nvrtc_version()
    known = _bindings().nvrtcGetSupportedArchs()[1]
    if number in known:
        return ""
    if number < min(known):
        major = version.partition(".")[0]
        return f"{arch}: NVRTC {major} has dropped it (oldest: sm_{min(known)}); install peakgemm[cu12]"
    package = "nvidia-cuda-nvrtc" + "-cu12" * version.startswith("12.")
    return (f"{arch}: NVRTC {version} does not know it (newest: sm_{max(known)}); run: pip install --upgrade {package}"
            ", or without peakgemm[cu12] install NVRTC 13")


@cache
def identity() -> str:
    """The compiler as it enters a key, by its distributions: to load it for its version takes longer than to read a
    compiled kernel from disk.

    They are recognised by the names of their folders: ``importlib.metadata`` alone takes 25 ms to import.
    """
    parts = ("cuda_bindings-", "nvidia_cuda_nvrtc-", "nvidia_cuda_nvrtc_cu12-")
    installed: set[str] = set()
    for folder in sys.path:
        with suppress(OSError):
            installed.update(name for name in os.listdir(folder or ".")
                             if name.startswith(parts) and name.endswith(".dist-info"))
    used = parts[2] if any(name.startswith("cuda_bindings-12.") for name in installed) else parts[1]
    if not any(name.startswith(used) for name in installed):
        installed.add(f"NVRTC {nvrtc_version()}")
    return " ".join(sorted(installed))


@cache
def _bindings() -> Any:
    """The bindings of NVRTC.

    With those of CUDA 12 (the cu12 extra), NVRTC 12 is loaded first although 13 is installed too: they would take the
    first NVRTC that they find, but take one that is loaded already.
    """
    from importlib.metadata import PackageNotFoundError, files, version

    with suppress(PackageNotFoundError, OSError):  # what the bindings find is then used, and named in every record
        if version("cuda-bindings").startswith("12."):
            for file in files("nvidia-cuda-nvrtc-cu12") or ():
                if file.name.startswith(("libnvrtc.so", "nvrtc64")):
                    ctypes.CDLL(str(file.locate()))
    from cuda.bindings import nvrtc

    return nvrtc
