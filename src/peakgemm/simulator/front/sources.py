"""From what a caller names to the PTX of a kernel: a file, a text, something compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...errors import CompileFailed, InvalidType, InvalidValue
from ...runtime import includes
from ...runtime.compile import Compiled, compile_source
from ...runtime.source import KERNELS, assemble, entries
from . import demangle
from .ptx import Kernel, Module


def ptx_of(source: Path | str | Compiled, entry: str | None, arch: str, macros: Mapping[str, int] | None,
          include: Sequence[Path]) -> str:
    if isinstance(source, Compiled):
        if source.kind != "ptx":
            raise InvalidType(f"a compiled {source.kind} cannot be simulated; compile with kind='ptx'")
        return source.text
    if isinstance(source, Path):
        return _read(source) if source.suffix == ".ptx" else _compiled(source, entry, arch, macros, include)
    if isinstance(source, str):
        if ".version" not in source and "\n" not in source:
            raise InvalidType(f"source {source!r} is text, not PTX; pass pathlib.Path({source!r}) for a file")
        return source
    raise InvalidType(f"source is a {type(source).__name__}; pass a pathlib.Path, PTX text or a Compiled of kind 'ptx'")


def _compiled(source: Path, entry: str | None, arch: str, macros: Mapping[str, int] | None,
              include: Sequence[Path]) -> str:
    """PTX of a ``.cu`` file: of the kernel that is ``extern "C"``, or of all that it exports."""
    _read(source)
    headers = includes.folders(include)
    joined = assemble(source, include)
    names = entries(joined)
    bare = re.split(r"[<(]", entry or "")[0].split("::")[-1].strip()
    if entry is not None and not entry.startswith("_Z") and not re.search(rf"\b{re.escape(bare)}\b", joined):
        raise InvalidValue(f"{source.name} exports no kernel {entry!r}; it has {', '.join(names) or 'none'}")
    if entry is None and len(names) > 1:
        raise InvalidValue(f"{source.name} exports {len(names)} kernels ({', '.join(names)}); pass entry=")
    alone = entry is None and len(names) == joined.count("__global__") == 1
    one = entry if entry in names else names[0] if alone else ""
    if re.search(r"^\s*#\s*include\b", joined, re.M) is None:
        headers = []
    compiled = partial(compile_source, joined, one, arch, macros, kind="ptx", name=source.name, include=headers)
    try:
        text = compiled().text
    except CompileFailed as error:
        raise includes.hinted(error) from None
    if entry is not None and "<" in entry and "(" not in entry:
        found = re.findall(r"\.entry\s+([\w$]+)", text)
        try:
            demangle.chosen(entry, found, f"{source.name} exports")
        except InvalidValue:  # of a template nobody may have asked for it yet
            with suppress(CompileFailed):
                return compiled(instance=entry).text
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read ({error.strerror}); name a .cu or .ptx file") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} is not text (byte {error.start} is no UTF-8); name a .cu or .ptx file") from None


def display(name: str) -> str:
    """A file of the package by its name there: the compiler makes it relative to some folder."""
    parts = Path(name).parts
    for start in range(len(parts)):
        suffix = Path(*parts[start:])
        if not suffix.is_absolute() and (KERNELS / suffix).is_file():
            return suffix.as_posix()
    return name


def kernel_of(module: Module, entry: str | None, whose: str) -> Kernel:
    broken = [name for name in module.broken if name not in module.kernels]
    every = [*module.kernels, *broken]
    more = f"; not understood: {'; '.join(module.skipped[:3])}" if module.skipped else ""
    if entry is None and len(every) != 1:
        names = ", ".join(demangle.shown(name) for name in every) or "none"
        raise InvalidValue(f"{whose} {len(every)} kernels ({names}); pass entry={more}")
    name = every[0] if entry is None else demangle.chosen(entry, every, whose)
    if name in broken:
        raise module.broken[name]
    kernel = module.kernels[name]
    kernel.skipped = [*module.skipped, *kernel.skipped]
    return kernel
