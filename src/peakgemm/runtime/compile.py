"""NVRTC to cubin and PTX, for any architecture, with no driver and no GPU present.

Takes text and macros, no arrays, and launches nothing, so it runs in a thread pool. Threads
that ask for the same compilation at the same time share one. A long one says on the logger
``peakgemm`` that it is under way, once per process, unless a progress bar does (`quietly`).
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from threading import Lock, Timer
from typing import Any, Literal, TypeVar

from ..errors import CompileFailed, MissingComponent
from . import cache as disk_cache
from .architectures import architecture
from .source import essence

Kind = Literal["cubin", "ptx"]
#: Reads figures of a kernel off its cubin, as JSON: they are kept beside it.
Look = Callable[[bytes, str], "dict[str, Any] | None"]
T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("peakgemm")
ANNOUNCE_AFTER = 0.5  # seconds: what takes longer looks like a hang
#: Tested releases of NVRTC, oldest first. `python -m lab.compilers` compiles every kernel by each of them.
TESTED = ("12.9.86", "13.0.88", "13.2.86", "13.4.92", "13.5.37")
TRIES = 6  # for `Wanted` code: of rung 14, 4 of 20 fresh processes made another (docs/sass-tuning.md)
_IMPORTING = Lock()  # a second thread that imports cuda.core meanwhile finds it half made
_LOCK = Lock()  # guards the two below
_under_way: dict[bytes, Future[Compiled]] = {}
_silence = {"bars": 0, "said": 0}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The code that is asked for, of the several that NVRTC makes of one source.

    Its loads are joined into wide ones in an order that depends on where the heap happens to lie, so two processes may
    get different registers (with a fixed address space, ``setarch -R``, none did). ``name`` stands for the code in the
    cache's key, and ``fits`` knows it.
    """

    name: str
    fits: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a compilation was made from, to make it again, and its key in the disk cache."""

    text: str
    macros: tuple[tuple[str, int], ...]
    name: str
    key: bytes
    wanted: Wanted | None = None
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled kernel and what ptxas said of it (None for PTX, which has no registers yet).

    ``recipe`` is there when it was read from the disk cache; see `anew`. ``note``: what was done to the compiler's code
    afterwards, or why it was not; empty where nothing was meant to be. ``loop``: what `Look` read; None: nobody looked.
    """

    entry: str
    arch: str
    kind: Kind
    code: bytes
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    static_shared: int | None = None
    recipe: Recipe | None = field(default=None, compare=False, repr=False)
    note: str = field(default="", compare=False)
    loop: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The PTX as text."""
        return self.code.decode()


def compile_source(text: str, entry: str, arch: str, macros: Mapping[str, int] | None = None,
                   kind: Kind = "cubin", name: str = "kernel.cu", include: Sequence[str] = (),
                   instance: str = "", wanted: Wanted | None = None, look: Look | None = None) -> Compiled:
    """Compile joined CUDA C++ ``text`` for ``arch`` (``sm_NN``) with ``macros`` defined.

    Of PTX the ``entry`` may be empty: whatever the source exports. ``include`` are the folders of headers. ``instance``
    names the kernel by an expression (``ns::foo<float, 8>``), of a template that the source does not instantiate too;
    the result's entry is its symbol. Where ``wanted`` code does not come at once, the compiler is asked again, `TRIES`
    times at most; the last answer counts. ``look`` reads the cubin once, when it is made.

    Line information is always kept: it costs no instruction and every tool shows it.

    Raises:
        InvalidValue: unknown architecture.
        MissingComponent: NVRTC is not installed or lacks the architecture.
        CompileFailed: the source is refused, or exports no ``entry``; the message is the compiler's log.
    """
    architecture(arch)
    key, options = _made_from(text, entry, arch, macros, kind, name, include, instance, wanted)
    kept = {*(FACTS if kind == "cubin" else ()), *(["entry"] if instance else ()), *(["loop"] if look else ())}

    def work() -> Compiled:
        hit, symbol = disk_cache.load(key), entry
        if hit is not None and hit[1].keys() == kept:
            recipe = Recipe(text, tuple((macros or {}).items()), name, key, wanted, look)
            return Compiled(arch=arch, kind=kind, code=hit[0], recipe=recipe, **{"entry": entry, **hit[1]})
        Program, ProgramOptions = _cuda_core()
        why = lacking(arch)  # if NVRTC is missing, this says so in our own words
        if why:
            raise MissingComponent(why)
        tries = 1 if wanted is None else TRIES
        logs, code, detail = io.StringIO(), b"", ""
        try:
            with _announced(name, arch):
                for _ in range(tries):
                    logs = io.StringIO()
                    chosen = ProgramOptions(**options)
                    if kind == "ptx" or instance:
                        code, symbol = _by_nvrtc(text, chosen, logs, kind, instance)
                    else:
                        code = bytes(Program(text, "c++", chosen).compile(kind, logs=logs).code)
                    if wanted is None or wanted.fits(code):
                        break
        except Exception as error:
            detail = logs.getvalue().strip() or str(error) or type(error).__name__
            detail = re.sub(r"^\d+: NVRTC_ERROR_COMPILATION, compilation log:", "", detail.replace("\0", "")).strip()
        if detail:  # raised out here, it holds on to no Program: cuda.core 1.2 crashes on one in a cycle
            raise CompileFailed(f"{name} does not compile for {arch}:\n{detail}")
        symbol = symbol or entry
        log = logs.getvalue().replace("\0", "").strip()
        facts = ptxas_facts(log, symbol) if kind == "cubin" else {}
        if not facts if kind == "cubin" else symbol and f".entry {symbol}(".encode() not in code:
            raise CompileFailed(f"{name} holds no kernel {symbol!r} for {arch}; compiler log:\n{log}")
        if look is not None:
            facts["loop"] = look(code, symbol)
        disk_cache.save(key, code, {**facts, **({"entry": symbol} if instance else {})})
        return Compiled(symbol, arch, kind, code, **facts)

    return _once(key, work)


def _made_from(text: str, entry: str, arch: str, macros: Mapping[str, int] | None, kind: Kind, name: str,
               include: Sequence[str] = (), instance: str = "",
               wanted: Wanted | None = None) -> tuple[bytes, dict[str, Any]]:
    """The key of a compilation in the disk cache, and the compiler's options."""
    options = {
        "name": name, "arch": arch if kind == "cubin" else arch.replace("sm_", "compute_"),
        "std": "c++17", "lineinfo": True,
        "define_macro": [(key, str(value)) for key, value in sorted((macros or {}).items())] or None,
        "ptxas_options": ["-v"] if kind == "cubin" else None,
        **({"include_path": list(include)} if include else {}),
        "no_cache": True,  # NVRTC's own cache, which works where there is a driver, gives back no ptxas log
    }
    made_from = [essence(text), entry, kind, options, _compiler()]  # the entry, for the stored facts are of it
    if include or instance:
        made_from += [instance, {folder: os.stat(folder).st_mtime_ns for folder in include}]
    if wanted is not None:
        made_from.append(wanted.name)
    return hashlib.sha256(json.dumps(made_from).encode()).digest(), options


def stored_facts(text: str, entry: str, arch: str, macros: Mapping[str, int], name: str) -> Mapping[str, Any]:
    """What the disk cache has beside the cubin of such a compilation; empty where it has none."""
    hit = disk_cache.load(_made_from(text, entry, arch, macros, "cubin", name)[0])
    return {} if hit is None else hit[1]



def anew(compiled: Compiled) -> Compiled | None:
    """A compilation that came from the disk cache and turned out to be of no use, made again.

    Its entry is dropped. None where there is nothing to gain: this process compiled it, or the
    compiler makes the same code again.

    Raises:
        CompileFailed, MissingComponent: see `compile_source`.
    """
    recipe = compiled.recipe
    if recipe is None:
        return None
    disk_cache.drop(recipe.key)
    fresh = compile_source(recipe.text, compiled.entry, compiled.arch, dict(recipe.macros), compiled.kind, recipe.name,
                           wanted=recipe.wanted, look=recipe.look)
    return fresh if fresh.code != compiled.code else None


@contextmanager
def quietly() -> Iterator[None]:
    """Within the block no compilation announces itself, in any thread: a progress bar shows it."""
    with _LOCK:
        _silence["bars"] += 1
    try:
        yield
    finally:
        with _LOCK:
            _silence["bars"] -= 1


@contextmanager
def _announced(name: str, arch: str) -> Iterator[None]:
    """Say, from a thread of its own so that it is read meanwhile, that the block takes long."""
    timer = Timer(ANNOUNCE_AFTER, _announce, (name, arch))
    timer.daemon = True
    if not _silence["said"]:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _announce(name: str, arch: str) -> None:
    with _LOCK:
        if _silence["bars"] or _silence["said"]:
            return
        _silence["said"] = 1
    place = f"cached in {disk_cache.folder()}" if disk_cache.usable() else "there is no cache to keep it"
    log.warning("peakgemm: compiling %s for %s (first use; %s) ...", name, arch, place)


def _once(key: bytes, work: Callable[[], Compiled]) -> Compiled:
    """``work()``, or the result of the thread that is doing the same work."""
    with _LOCK:
        future = _under_way.get(key)
        if mine := future is None:
            future = _under_way[key] = Future()
    try:
        if mine:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            finally:
                with _LOCK:
                    del _under_way[key]
        return future.result()
    finally:
        del future  # it holds the exception whose traceback holds this frame


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``[work(item) ...]`` on a thread pool (NVRTC releases the interpreter), in order; a single one here."""
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(work, items))


@cache
def _compiler() -> str:
    """The compiler as it enters the key, by its distributions: to load it for its version takes longer than a hit.

    They are told by the names of their folders: ``importlib.metadata`` alone takes 25 ms to import.
    """
    parts = ("cuda_core-", "cuda_bindings-", "nvidia_cuda_nvrtc-", "nvidia_cuda_nvrtc_cu12-")
    found: set[str] = set()
    for place in sys.path:
        with suppress(OSError):
            found.update(x for x in os.listdir(place or ".") if x.startswith(parts) and x.endswith(".dist-info"))
    used = parts[3] if any(x.startswith("cuda_bindings-12.") for x in found) else parts[2]
    if any(x.startswith(used) for x in found):
        return " ".join(sorted(found))
    _cuda_core()  # under the lock, before the bindings are imported below
    return " ".join([f"NVRTC {nvrtc_version()}", *sorted(found)])


def nvrtc_version() -> str:
    """NVRTC's version, ``13.4``.

    Raises:
        MissingComponent: NVRTC cannot be loaded.
    """
    _prefer_nvrtc_of_the_bindings()
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
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
    from cuda.bindings import nvrtc

    known = nvrtc.nvrtcGetSupportedArchs()[1]
    if number in known:
        return ""
    if number < min(known):
        major = version.partition(".")[0]
        return f"{arch}: NVRTC {major} has dropped it (oldest: sm_{min(known)}); install peakgemm[cu12]"
    package = "nvidia-cuda-nvrtc" + "-cu12" * version.startswith("12.")
    return (f"{arch}: NVRTC {version} does not know it (newest: sm_{max(known)}); run: pip install --upgrade {package}"
            ", or without peakgemm[cu12] install NVRTC 13")


@cache
def _prefer_nvrtc_of_the_bindings() -> None:
    """With the bindings of CUDA 12 (the cu12 extra), load NVRTC 12 although 13 is installed too.

    The bindings would take the first NVRTC that they find, but take one that is loaded already.
    """
    from importlib.metadata import PackageNotFoundError, files, version

    try:
        if version("cuda-bindings").startswith("12."):
            for file in files("nvidia-cuda-nvrtc-cu12") or ():
                if file.name.startswith(("libnvrtc.so", "nvrtc64")):
                    ctypes.CDLL(str(file.locate()))
    except (PackageNotFoundError, OSError):
        return  # what the bindings find by themselves is then used, and named in every record


def _cuda_core() -> tuple[Any, Any]:
    try:
        with _IMPORTING:
            from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise MissingComponent(f"cuda.core cannot be imported ({error}); run: pip install 'cuda-core[cu13]'") from None
    return Program, ProgramOptions


def _by_nvrtc(text: str, options: Any, logs: io.StringIO, kind: Kind, instance: str) -> tuple[bytes, str]:
    """Code by NVRTC itself, and the symbol of ``instance``: cuda.core 1.2 asks the driver for its version before it
    returns PTX, and tells no symbol."""
    from cuda.bindings import nvrtc

    def checked(answer: tuple[Any, ...]) -> Any:
        if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(nvrtc.nvrtcGetErrorString(answer[0])[1].decode())
        return answer[1] if len(answer) > 1 else None

    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), options.name.encode(), 0, None, None))
    try:
        if instance:
            checked(nvrtc.nvrtcAddNameExpression(program, instance.encode()))
        flags = options.as_bytes("nvrtc", kind)
        status = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        logs.write(log.rstrip(b"\0").decode())
        checked(status)
        size, get = ((nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if kind == "ptx"
                     else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN))
        code = bytearray(checked(size(program)))
        checked(get(program, code))
        symbol = checked(nvrtc.nvrtcGetLoweredName(program, instance.encode())).decode() if instance else ""
        return bytes(code).rstrip(b"\0") if kind == "ptx" else bytes(code), symbol
    finally:
        nvrtc.nvrtcDestroyProgram(program)


FACTS = ("registers", "spill_bytes", "stack_bytes", "static_shared")


def ptxas_facts(log: str, entry: str) -> dict[str, Any]:
    """Registers, spills, stack and static shared memory of ``entry`` from ``ptxas -v``."""
    block = re.search(rf"Compiling entry function '{re.escape(entry)}'(.*?)(?=Compiling entry function|\Z)", log, re.S)
    if block is None:
        return {}
    def number(pattern: str) -> int:
        found = re.search(pattern, block[1])
        return int(found[1]) if found else 0
    return {
        "registers": number(r"Used (\d+) registers"),
        "spill_bytes": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        "stack_bytes": number(r"(\d+) bytes stack frame"),
        "static_shared": number(r"(\d+) bytes smem"),
    }
