"""From what a caller names to the code of a kernel: a file, a text, something compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ....errors import CompileFailed, InvalidType, InvalidValue
from ....runtime.compile import Compiled, Kind, compile_source
from ....runtime.source import KERNELS, assemble
from . import demangle, host_code, includes
from .launches import Launch, launches
from .outline import Declared, Outline, outline
from .ptx import Kernel, Module

_NAMES = "__nv_name_map("  # what the compiler calls the place where an instance was asked for


def ptx_of(source: Path | str | Compiled, entry: str | None, arch: str, macros: Mapping[str, int] | None,
           include: Sequence[Path]) -> tuple[str, str | None]:
    """PTX, and the kernel in it that ``entry`` names: of a ``.cu`` file its symbol."""
    if isinstance(source, Compiled):
        if source.kind != "ptx":
            raise InvalidType(f"a compiled {source.kind} cannot be simulated; compile with kind='ptx'")
        return source.text, entry
    if isinstance(source, Path):
        if source.suffix == ".ptx":
            return _read(source), entry
        compiled = from_cuda(source, entry, arch, macros, include, "ptx")
        return compiled.text, compiled.entry
    if isinstance(source, str):
        if ".version" not in source and "\n" not in source:
            raise InvalidType(f"source {source!r} is text, not PTX; pass pathlib.Path({source!r}) for a file")
        return source, entry
    raise InvalidType(f"source is a {type(source).__name__}; pass a pathlib.Path, PTX text or a Compiled of kind 'ptx'")


def from_cuda(path: Path, entry: str | None, arch: str, macros: Mapping[str, int] | None, include: Sequence[Path],
              kind: Kind) -> Compiled:
    """The kernel of a ``.cu`` file, compiled; its ``entry`` is the symbol.

    ``entry`` is a symbol, or a name as `demangle.chosen` takes it: with or without namespaces, template arguments and
    parameters. A template that the source does not instantiate is instantiated, with the arguments of ``entry`` or its
    defaults. None or empty: the only kernel.

    Raises:
        InvalidValue: no such kernel, several, or a template whose arguments are missing or wrong; a file that cannot be
            read.
        CompileFailed: the source does not compile; the message says what to do about headers and host code.
    """
    given = tuple((macros or {}).items())
    text = joined = _joined(path, include)
    options: tuple[str, ...] = ()
    if (code := _host_code(path, include, macros)) is not None:
        entry, joined = _kernel(path.name, code, entry), code.text
        text, options = code.device_text(demangle.bare(entry)), ("--device-as-default-execution-space",)
    seen = outline(text, given)
    build = partial(compile_source, includes.PRELUDE + text, arch=arch, macros=macros, name=path.name,
                    include=includes.folders(include), options=options)
    try:
        return _built(build, path, entry or "", seen, kind)
    except CompileFailed as error:
        raise CompileFailed(_explained(str(error), path.name, joined, seen)) from None


def offered(path: Path, entry: str | None, macros: Mapping[str, int] | None, include: Sequence[Path],
            size: int | None = None) -> Launch | None:
    """The launch that the host code of a file has for a kernel; without ``entry`` the first one.

    None: there is no host code, no launch in it, or no parser for it. See `launches.launches` for ``size``.

    Raises:
        InvalidValue: as `from_cuda`.
    """
    code = _host_code(path, include, macros)
    return _launch(code, _kernel(path.name, code, entry), size) if code is not None else None


def _host_code(path: Path, include: Sequence[Path], macros: Mapping[str, int] | None) -> host_code.HostCode | None:
    """The file's host code; None: it has none, or there is no parser."""
    given = tuple((macros or {}).items())
    if not outline(_joined(path, include), given).host or not host_code.available():
        return None
    return host_code.read(_joined(path, include, cut=True), given)


def _launch(code: host_code.HostCode, entry: str, size: int | None) -> Launch | None:
    made = [one for one in launches(code, size) if one.kernel and demangle.ends_with(demangle.bare(one.kernel),
                                                                                   demangle.bare(entry))]
    return min(made, default=None, key=lambda one: (bool(one.unknown), size is not None and not one.sized,
                                                    one.kernel.replace(" ", "") != entry.replace(" ", "")))


def _kernel(file: str, code: host_code.HostCode, entry: str | None) -> str:
    """The kernel of a file with host code as an expression of C++, with the template arguments of its first launch
    where ``entry`` has none. Without ``entry``: of the kernels that are defined here, the one that is launched first.

    Raises:
        InvalidValue: no such kernel, several, or only the declaration of one.
    """
    bare = demangle.bare(demangle.demangled(entry).path) if entry else ""
    meant = [one for one in code.kernels if not entry or demangle.ends_with(one, bare)]
    here = [one for one in meant if code.kernels[one].is_definition()] or meant
    first = next((one.kernel for one in launches(code) if demangle.bare(one.kernel) in here), None)
    if first is None and len(here) != 1:
        which = f"{len(here)} kernels and no launch of one" if meant else f"no kernel {entry or ''}".rstrip()
        hidden = [f"{one.where} launches what only a run knows ({one.unknown[0]})" for one in launches(code)
                  if not one.kernel]
        known = f"name one by --kernel, of {', '.join(code.kernels)}" if code.kernels else ""
        raise InvalidValue("; ".join(filter(None, (f"{file} holds {which}", *hidden[:1], known, code.complaint))))
    name = first or here[0]
    if not (declared := code.kernels[demangle.bare(name)]).is_definition():
        raise InvalidValue(f"{code.where(declared)} declares kernel {demangle.bare(name)}, and its code is in another "
                           "file; name that file, or choose a kernel of this one by --kernel")
    return demangle.bare(name) + demangle.template_arguments(entry) if entry and "<" in entry else name


def _joined(path: Path, include: Sequence[Path], cut: bool = False) -> str:
    """The text of a file with its headers; of one whose device code is ``cut`` out, without headers that are not found.
    """
    _read(path)
    near = [folder for folder in (path.parent / "include", path.parent.parent / "include") if folder.is_dir()]
    return assemble(path, [*include, *near], includes.found if cut else includes.instead)


def _built(build: partial[Compiled], path: Path, entry: str, seen: Outline, kind: Kind) -> Compiled:
    meant = [one for one in seen.kernels if not entry or demangle.ends_with(one.path, demangle.bare(entry))]
    refused = ""
    if len(meant) == 1 and (entry or seen.complete) and (instance := _instance(entry, meant[0])):
        try:
            return build("", kind=kind, instance=instance)
        except CompileFailed as error:
            # Of overloads, and where macros hide what is there, the compiler's own list of kernels tells more.
            if (refused := _refused(str(error))) == "":
                raise
    ptx = build("", kind="ptx")
    found = re.findall(r"\.entry\s+([\w$]+)", ptx.text)
    templates = [one for one in meant if one.parameters is not None]
    symbol = _symbol(path.name, entry, found, refused if templates else "")
    if symbol is None and templates:
        asked = f"{path.name} does not instantiate {', '.join(map(str, templates))}"
        example = f"peakgemm inspect {path} --kernel '{templates[0].example}'"
        if refused:
            raise InvalidValue(f"{asked} as {entry or templates[0].path}: {refused}; an example: {example}")
        which = "one, with its" if len(templates) > 1 else "its"
        raise InvalidValue(f"{asked}; name {which} template arguments, as in: {example}")
    if symbol is None:
        paths = {demangle.demangled(one).path for one in found}
        known = (*map(demangle.shown, found), *(str(one) for one in seen.kernels if one.path not in paths))
        which = f" {entry!r}" if entry else ""
        raise InvalidValue(f"{path.name} holds no kernel{which}; it has {', '.join(known) or 'none'}")
    return Compiled(symbol, ptx.arch, "ptx", ptx.code) if kind == "ptx" else build(symbol, kind=kind)


def _symbol(file: str, entry: str, found: Sequence[str], refused: str) -> str | None:
    """The kernel that is meant of those ``found`` in the code; None: none of them.

    ``refused`` is why the compiler knows no instance of that name; it may have one of that spelling all the same.

    Raises:
        InvalidValue: several may be meant.
    """
    bare = demangle.bare(entry)
    named = [one for one in found if entry in (one, "") or demangle.ends_with(demangle.demangled(one).path, bare)]
    if not entry and len(named) > 1:
        raise InvalidValue(f"{file} holds {len(named)} kernels ({', '.join(map(demangle.shown, named))}); name one by "
                           "--kernel (entry= in Python)")
    try:
        return (demangle.chosen(entry, found, f"{file} holds") if entry else named[0]) if named else None
    except InvalidValue:
        if refused:
            return None
        raise


def _instance(entry: str, kernel: Declared) -> str:
    """The expression of C++ that means the kernel; empty: it wants template arguments that are not there."""
    arguments = demangle.template_arguments(entry)
    if kernel.parameters is None:
        return kernel.path if not arguments else ""
    return f"{kernel.path}{arguments or '<>'}" if arguments or not kernel.needs_arguments else ""


def _blocks(log: str) -> list[str]:
    """The complaints of a compiler's log, each with the lines that show it; warnings are left out."""
    found = re.split(r"\n(?=\S.*\(\d+\): (?:catastrophic )?(?:error|warning|remark))", "\n" + log)
    return [one.strip("\n") for one in found if one.strip() and not re.match(r"\S.*\(\d+\): (?:warning|remark)", one)]


def _refused(log: str) -> str:
    """Why the compiler knows no such instance, where it has no other complaint; empty: it has."""
    complaints = [one for one in _blocks(log) if re.match(r"\S.*\(\d+\): (?:catastrophic )?error", one)]
    if not complaints or not all(one.startswith(_NAMES) for one in complaints):
        return ""
    return complaints[0].split("\n")[0].partition("error: ")[2]


def _explained(log: str, file: str, joined: str, seen: Outline) -> str:
    """A compiler's log without warnings, and with what to do; of host code no more than that and where it is."""
    blocks = [one for one in _blocks(log) if not one.startswith(_NAMES)]
    errors = [one.split("\n")[0] for one in blocks if re.match(r"\S.*\(\d+\): ", one)]
    functions = [one for one in errors if "in JIT mode" in one]  # of the host
    where = seen.host
    if functions and not where:
        where = re.sub(r"^.*\((\d+)\): .*", r"a function without __device__, line \1", functions[0])
    if where:
        first = next((f". First error: {one}" for one in errors if one not in functions), "")
        return (f"{file} holds host code ({where}), and only device code is compiled here: put #ifndef __CUDACC_RTC__ "
                "... #endif around host code, or keep kernels in a file of their own; a function that kernels call "
                f"wants __device__" + ("" if host_code.available() else f". Or run: {host_code.REMEDY}") + first)
    return "\n\n".join(filter(None, (*blocks, includes.hint(log, joined))))


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
