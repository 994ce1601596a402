"""Files to look into: cubins as they are, PTX through nvJitLink, CUDA C++ through NVRTC."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ..errors import CompileFailed, InvalidValue
from ..runtime import includes
from ..runtime.compile import Compiled, compile_source, ptxas_facts
from ..runtime.link import assemble_ptx
from ..runtime.source import assemble, entries
from ..sass.elf import BadCubin, Cubin
from ..simulator.front import demangle
from ..simulator.front.sources import ptx_of
from .subject import Subject, pick

SUFFIXES = (".cubin", ".ptx", ".cu")


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
        CompileFailed, MissingComponent: see `runtime.compile`, `runtime.link`.
    """
    if not path.is_file():
        raise InvalidValue(f"{path} is not a file; name a .cubin, .ptx or .cu file, a rung such as 12, or a kernel")
    if path.suffix != ".cu" and (macros or include):
        raise InvalidValue(f"--macro and --include are for .cu files, {path.name} is compiled already")
    if path.suffix == ".cu":
        return _from_cuda(path, arch or "sm_90", kernel, macros, include)
    data = path.read_bytes()
    if path.suffix == ".ptx":
        return _from_ptx(path, data, arch, kernel)
    try:
        cubin = Cubin.read(data)
    except BadCubin as error:
        library = "; of a library or a fatbin, extract cubins by: cuobjdump -xelf all FILE"
        hint = "" if path.suffix == ".cubin" else library
        raise BadCubin(f"{path.name}: {error}{hint}") from None
    if arch is not None and arch.rstrip("af") != cubin.arch:
        raise InvalidValue(f"--arch {arch}: {path.name} is compiled for {cubin.arch} already; leave --arch out")
    function, others = pick(cubin, kernel, path.name)
    return Subject(f"{path.name}: {_short(function)} on {cubin.arch}", "cubin", cubin, function, cubin.arch,
                   source=path, others=others)


def _from_ptx(path: Path, data: bytes, arch: str | None, kernel: str) -> Subject:
    try:
        text = data.decode("utf-8-sig").rstrip("\0")
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} is not text (byte {error.start} is no UTF-8); name a .ptx file") from None
    target = re.search(r"^\s*\.target\s+(sm_\w+)", text, re.M)
    if target is None:
        raise InvalidValue(f"{path} names no .target, so it is no PTX; name a .ptx, .cubin or .cu file")
    code, log = assemble_ptx(text, arch or target[1], path.name)
    cubin = Cubin.read(code)
    function, others = pick(cubin, kernel, path.name)
    return Subject(f"{path.name}: {_short(function)} on {cubin.arch}", "ptx", cubin, function, cubin.arch,
                   spill_bytes=ptxas_facts(log, function).get("spill_bytes"), source=path, others=others)


def _from_cuda(path: Path, arch: str, kernel: str, macros: Mapping[str, int] | None,
               include: Sequence[Path]) -> Subject:
    compiled = _compile(path, arch, kernel, macros, include)
    cubin = Cubin.read(compiled.code)
    function, others = pick(cubin, compiled.entry, path.name)
    return Subject(f"{path.name}: {_short(function)} on {cubin.arch}", "cu", cubin, function, cubin.arch,
                   spill_bytes=compiled.spill_bytes, source=path, others=others)


def _compile(path: Path, arch: str, kernel: str, macros: Mapping[str, int] | None,
             include: Sequence[Path]) -> Compiled:
    """The cubin of a file that has the kernel: one that is not ``extern "C"`` is found in the PTX first."""
    joined = assemble(path, include)
    names = entries(joined)
    alone = not kernel and len(names) == joined.count("__global__") == 1
    known = kernel if kernel in names else names[0] if alone else ""
    if not kernel and len(names) > 1:
        raise InvalidValue(f"{path.name} holds {len(names)} kernels ({', '.join(names)}); name one by --kernel")
    headers = includes.folders(include) if re.search(r"^\s*#\s*include\b", joined, re.M) else []
    build = partial(compile_source, joined, arch=arch, macros=macros, name=path.name, include=headers)
    try:
        if known:
            return build(known)
        ptx = ptx_of(path, kernel or None, arch, macros, include)
        found = re.findall(r"\.entry\s+([\w$]+)", ptx)
        if not kernel and len(found) != 1:
            listed = ", ".join(demangle.shown(one) for one in found) or "none"
            raise InvalidValue(f"{path.name} holds {len(found)} kernels ({listed}); name one by --kernel")
        entry = demangle.chosen(kernel, found, f"{path.name} holds") if kernel else found[0]
        return build(entry, instance=kernel if "<" in kernel and "(" not in kernel else "")
    except CompileFailed as error:
        raise includes.hinted(error) from None


def _short(function: str) -> str:
    """A kernel's name for a head: C++'s, and not the whole of a template's arguments."""
    name = demangle.shown(function)
    return name if len(name) <= 60 else f"{name[:57]}..."
