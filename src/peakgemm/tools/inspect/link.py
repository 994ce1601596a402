"""PTX to cubin by nvJitLink, with no driver and no GPU present: NVRTC starts from CUDA C++ only."""

from __future__ import annotations

import re
from typing import Any

from ...errors import CompileFailed, MissingComponent
from ...runtime.architectures import number_of

PACKAGE = "nvidia-nvjitlink"


def assemble_ptx(ptx: str, arch: str, name: str = "kernel.ptx") -> tuple[bytes, str]:
    """The cubin of ``ptx`` for ``arch`` (``sm_NN``), and what ptxas says of it (registers, spills).

    Line information of PTX is kept.

    Raises:
        InvalidValue: not the name of an architecture.
        MissingComponent: nvJitLink is not installed.
        CompileFailed: the PTX is refused: a syntax error, a version or a target that this nvJitLink does not take.
    """
    number_of(arch)
    link = _bindings()
    data = ptx.encode()
    options = [f"-arch={arch}", "-lineinfo", "-verbose", "-Xptxas=-v"]
    said, code = "", b""
    try:
        handle = link.create(len(options), options)
    except Exception as error:
        raise CompileFailed(f"nvJitLink does not know {arch} ({error}); run: pip install --upgrade {PACKAGE}") from None
    try:
        link.add_data(handle, link.InputType.PTX, data, len(data), name)
        link.complete(handle)
        code = _bytes(link.get_linked_cubin_size, link.get_linked_cubin, handle)
    except Exception as error:
        said = f"{_text(link.get_error_log_size, link.get_error_log, handle).strip() or error}"
    log = _text(link.get_info_log_size, link.get_info_log, handle)
    link.destroy(handle)
    if said:  # the exception that led here is done with: it holds on to the handle
        raise CompileFailed(f"{name} cannot be assembled for {arch}:\n{said}{_hint(ptx, arch)}")
    return code, log


def _hint(ptx: str, arch: str) -> str:
    target = re.search(r"^\s*\.target\s+(sm_\w+)", ptx, re.M)
    if target and target[1] != arch:
        return f"\nIt was made for {target[1]}: pass --arch {target[1]}, or a later one."
    return ""


def _bindings() -> Any:
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except Exception as error:
        raise MissingComponent(f"nvJitLink, which assembles PTX, cannot be loaded ({str(error).splitlines()[0]}); "
                               f"run: pip install 'peakgemm[ptx]', or pip install {PACKAGE}") from None
    return nvjitlink


def _bytes(size: Any, fill: Any, handle: Any) -> bytes:
    buffer = bytearray(size(handle))
    if buffer:
        fill(handle, buffer)
    return bytes(buffer)


def _text(size: Any, fill: Any, handle: Any) -> str:
    return _bytes(size, fill, handle).rstrip(b"\0").decode(errors="replace")
