"""Compiled kernels, from the disk cache or by NVRTC, for any architecture, with no driver and no GPU present.

Takes text and macros, no arrays, and launches nothing, so it runs in a thread pool. Threads
that ask for the same compilation at the same time share one. A long one says on the logger
``peakgemm`` that it is under way, once per process, unless a progress bar does (`quietly`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Timer
from typing import Any, Literal, TypeVar

from ..errors import CompileFailed, MissingComponent
from . import cache as disk_cache
from . import nvrtc
from .architectures import architecture
from .source import essence

Kind = Literal["cubin", "ptx"]
T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("peakgemm")
ANNOUNCE_AFTER = 0.5  # seconds: what takes longer looks like a hang
#: Of a compilation whose code is not what is wanted: of rung 14, 4 of 20 fresh processes made another
#: (docs/sass-tuning.md).
TRIES = 6
#: What is kept beside a cubin: what ``ptxas -v`` says of it, and what a `Reading` gave.
FACTS = ("registers", "spill_bytes", "stack_bytes", "static_shared", "loop")
_LOCK = Lock()  # guards the two below
_under_way: dict[bytes, Future[Compiled]] = {}
_silence = {"bars": 0, "said": 0}


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read off a cubin once, when it is made, and kept beside it.

    ``read`` takes the cubin and its entry, and gives JSON; None: the code is not what is wanted. The compiler is then
    asked again, ``tries`` times in all, and its last answer counts: NVRTC joins loads into wide ones in an order that
    depends on the addresses of its heap, so that two processes may get different code of one source (with
    ``setarch -R``, which fixes addresses, none did). ``name`` stands for the reading in the cache's key.
    """

    name: str
    read: Callable[[bytes, str], dict[str, Any] | None]
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled kernel and what ptxas said of it (None for PTX, which has no registers yet).

    ``remake`` compiles it again; None: this process compiled it. ``note``: what was done to the compiler's code
    afterwards, or why it was not; empty where nothing was meant to be. ``loop``: what a `Reading` gave.
    """

    entry: str
    arch: str
    kind: Kind
    code: bytes
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    static_shared: int | None = None
    remake: Callable[[], Compiled] | None = field(default=None, compare=False, repr=False)
    note: str = field(default="", compare=False)
    loop: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The PTX as text."""
        return self.code.decode()


def compile_source(text: str, entry: str, arch: str, macros: Mapping[str, int] | None = None,
                   kind: Kind = "cubin", name: str = "kernel.cu", include: Sequence[str] = (),
                   instance: str = "", reading: Reading | None = None, options: Sequence[str] = ()) -> Compiled:
    """Compile joined CUDA C++ ``text`` for ``arch`` (``sm_NN``) with ``macros`` defined, or read the result from disk.

    Of PTX the ``entry`` may be empty: whatever the source exports. ``include`` are the folders of headers. ``instance``
    names the kernel by an expression (``ns::foo<float, 8>``), of a template that the source does not instantiate too;
    the result's entry is its symbol. ``options`` are further ones of NVRTC.

    Line information is always kept: it costs no instruction and every tool shows it.

    Raises:
        InvalidValue: unknown architecture.
        MissingComponent: NVRTC is not installed or lacks the architecture.
        CompileFailed: the source is refused, or exports no ``entry``; the message is the compiler's log.
    """
    architecture(arch)
    flags = [*_flags(arch, macros or {}, kind, include), *options]
    key = _key(text, entry, name, flags, include, instance, reading)

    def make() -> Compiled:
        if why := nvrtc.lacking(arch):
            raise MissingComponent(why)
        loop = None
        with _announced(name, arch):
            for _ in range(1 if reading is None else reading.tries):
                try:
                    built = nvrtc.build(text, name, flags, instance)
                except RuntimeError as error:
                    raise CompileFailed(f"{name} does not compile for {arch}:\n{error}") from None
                symbol = built.symbol or entry
                facts = ptxas_facts(built.log, symbol) if kind == "cubin" else dict.fromkeys(FACTS)
                if not facts or (kind == "ptx" and symbol and f".entry {symbol}(".encode() not in built.code):
                    raise CompileFailed(f"{name} holds no kernel {symbol!r} for {arch}; compiler log:\n{built.log}")
                loop = None if reading is None else reading.read(built.code, symbol)
                if loop is not None:
                    break
        kept = {"entry": symbol, **facts, "loop": loop}
        disk_cache.save(key, built.code, kept)
        return Compiled(arch=arch, kind=kind, code=built.code, **kept)

    def load_or_make() -> Compiled:
        hit = disk_cache.load(key)
        if hit is None or hit[1].keys() != {"entry", *FACTS}:
            return make()
        return Compiled(arch=arch, kind=kind, code=hit[0], remake=partial(_once, key, make), **hit[1])

    return _once(key, load_or_make)


def _flags(arch: str, macros: Mapping[str, int], kind: Kind, include: Sequence[str] = ()) -> list[str]:
    """The compiler's options. NVRTC's own cache, which works where there is a driver, gives back no ptxas log."""
    return [f"-arch={arch if kind == 'cubin' else arch.replace('sm_', 'compute_')}", "--generate-line-info",
            *(["--ptxas-options=-v"] if kind == "cubin" else []),
            *(f"--define-macro={name}={value}" for name, value in sorted(macros.items())),
            *(f"--include-path={folder}" for folder in include), "--std=c++17", "--no-cache"]


def _key(text: str, entry: str, name: str, flags: Sequence[str], include: Sequence[str] = (), instance: str = "",
         reading: Reading | None = None) -> bytes:
    """The key of a compilation in the disk cache: with its entry, for the stored facts are of it."""
    changed = [os.stat(folder).st_mtime_ns for folder in include]
    made_from = [essence(text), entry, name, flags, changed, instance, reading and reading.name, nvrtc.identity()]
    return hashlib.sha256(json.dumps(made_from).encode()).digest()


def stored_loop(text: str, entry: str, arch: str, macros: Mapping[str, int], name: str, reading: Reading) -> Any:
    """What ``reading`` gave of such a cubin in the disk cache; None where there is no such cubin."""
    hit = disk_cache.load(_key(text, entry, name, _flags(arch, macros, "cubin"), reading=reading))
    return None if hit is None else hit[1].get("loop")


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
    kept = f"cached in {disk_cache.folder()}" if disk_cache.usable() else "there is no cache to keep it"
    log.warning("peakgemm: compiling %s for %s (first use; %s) ...", name, arch, kept)


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
