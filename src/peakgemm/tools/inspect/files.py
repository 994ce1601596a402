"""Files to look into: cubins as they are, PTX through nvJitLink, CUDA C++ through NVRTC."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ...errors import InvalidValue
from ...runtime.compile import ptxas_facts
from ...runtime.source import SUFFIXES as CUDA
from ...sass.elf import BadCubin, Cubin
from ..simulator.front import demangle
from ..simulator.front.sources import from_cuda, offered
from .link import assemble_ptx
from .subject import Subject, pick

SUFFIXES = (".cubin", ".ptx", *CUDA)


def is_file(what: str) -> bool:
    """Whether ``what`` names a file, there or not, and no kernel."""
    return what.endswith(SUFFIXES) or "/" in what or Path(what).is_file()


def from_file(path: Path, arch: str | None, kernel: str = "", macros: Mapping[str, int] | None = None,
              include: Sequence[Path] = ()) -> Subject:
    """The kernel of a file.

    ``arch`` is what PTX is assembled and CUDA C++ compiled for (the PTX's target; sm_90), ``kernel`` which one where
    there are several, ``macros`` and ``include`` those of a ``.cu`` file.

    Raises:
        InvalidValue: a file that is not there or no cubin, or no such kernel in it.
        CompileFailed, MissingComponent: see `runtime.compile`, `link`.
    """
    if not path.is_file():
        raise InvalidValue(f"{path} is not a file; name a .cubin, .ptx or .cu file, a rung such as 12, or a kernel")
    if path.suffix not in CUDA and (macros or include):
        raise InvalidValue(f"--macro and --include are for .cu files, {path.name} is compiled already")
    if path.suffix in CUDA:
        compiled = from_cuda(path, kernel, arch or "sm_90", macros, include, "cubin")
        subject = _subject(path, "cu", Cubin.read(compiled.code), compiled.entry)
        launch = offered(path, kernel, macros, include)
        return replace(subject, spill_bytes=compiled.spill_bytes, dynamic_shared=launch.shared if launch else None,
                       threads=prod(launch.block) if launch and launch.block else None)
    data = path.read_bytes()
    if path.suffix == ".ptx":
        code, log = _assembled(path, data, arch)
        subject = _subject(path, "ptx", Cubin.read(code), kernel)
        return replace(subject, spill_bytes=ptxas_facts(log, subject.function).get("spill_bytes"))
    try:
        cubin = Cubin.read(data)
    except BadCubin as error:
        library = "; of a library or a fatbin, extract cubins by: cuobjdump -xelf all FILE"
        hint = "" if path.suffix == ".cubin" else library
        raise BadCubin(f"{path.name}: {error}{hint}") from None
    if arch is not None and arch.rstrip("af") != cubin.arch:
        raise InvalidValue(f"--arch {arch}: {path.name} is compiled for {cubin.arch} already; leave --arch out")
    return _subject(path, "cubin", cubin, kernel)


def _assembled(path: Path, data: bytes, arch: str | None) -> tuple[bytes, str]:
    """The cubin of a file of PTX, and what ptxas said."""
    try:
        text = data.decode("utf-8-sig").rstrip("\0")
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} is not text (byte {error.start} is no UTF-8); name a .ptx file") from None
    target = re.search(r"^\s*\.target\s+(sm_\w+)", text, re.M)
    if target is None:
        raise InvalidValue(f"{path} names no .target, so it is no PTX; name a .ptx, .cubin or .cu file")
    return assemble_ptx(text, arch or target[1], path.name)


def _subject(path: Path, kind: str, cubin: Cubin, kernel: str) -> Subject:
    function, others = pick(cubin, kernel, path.name)
    name = demangle.shown(function)  # C++'s, and not the whole of a template's arguments
    shown = name if len(name) <= 60 else f"{name[:57]}..."
    return Subject(f"{path.name}: {shown} on {cubin.arch}", kind, cubin, function, cubin.arch, source=path,
                   others=others)
