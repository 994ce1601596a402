"""A compiled kernel that is looked at, whatever it was named by."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...errors import InvalidValue
from ...kernels.registry import Kernel
from ...problem import Config
from ...sass.elf import Cubin
from ..simulator.front import demangle

_STATIC_SHARED_RESERVED = 1024  # bytes that ptxas counts in for the driver, sm_90 and later
_MAX_THREADS, _REQUIRED_THREADS, _FRAME = 0x05, 0x10, 0x11


@dataclass(frozen=True)
class Subject:
    """A kernel in a cubin, and what is known of it.

    Attributes:
        label: what a table's head calls it.
        kind: ``rung``, ``library``, ``cubin``, ``ptx`` or ``cu``.
        cubin: the file it is in.
        function: its name there.
        arch: ``sm_NN``, of the table of architectures or not.
        config, kernel: of a rung or a kernel of the library.
        threads, dynamic_shared: of a launch; None: not known.
        spill_bytes: as ptxas says; None: not known.
        source: the source file, None where there is none.
        others: the other kernels of the file.
        notes: what a reader must know, a sentence each.
    """

    label: str
    kind: str
    cubin: Cubin
    function: str
    arch: str
    config: Config | None = None
    kernel: Kernel | None = None
    threads: int | None = None
    dynamic_shared: int | None = None
    spill_bytes: int | None = None
    source: Path | None = None
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def number(self) -> int:
        """Of the architecture."""
        return int(self.arch.removeprefix("sm_"))

    @property
    def registers(self) -> int | None:
        """Registers a thread; None: the cubin does not say."""
        return self.cubin.kernels[self.function].registers

    @property
    def static_shared(self) -> int:
        """Bytes of static shared memory of a block, without what the driver keeps."""
        section = self.cubin.section(f".nv.shared.{self.function}")
        size = section.size if section else 0
        return size - _STATIC_SHARED_RESERVED if self.number >= 90 and size >= _STATIC_SHARED_RESERVED else size

    @property
    def stack_bytes(self) -> int | None:
        """Bytes of a thread's stack frame, where spills and arrays without a register lie."""
        return self.cubin.numbers_by_function(_FRAME).get(self.function)

    @property
    def bounded_threads(self) -> int | None:
        """Threads a block by ``__launch_bounds__`` or ``.reqntid``."""
        for attribute in self.cubin.attributes(self.function):
            if attribute.code in (_MAX_THREADS, _REQUIRED_THREADS) and len(attribute.payload) == 12:
                x, y, z = struct.unpack("<III", attribute.payload)
                return int(x * y * z)
        return None


def pick(cubin: Cubin, name: str, whose: str) -> tuple[str, tuple[str, ...]]:
    """The kernel ``name`` of a cubin (mangled or as C++ writes it; empty: the only one), and the others.

    Device functions that lie beside kernels are not offered, but found by their full name.

    Raises:
        InvalidValue: none, or several to choose from; the message lists them.
    """
    # What can be launched has a bank of constants for its parameters.
    kernels = [one for one in cubin.kernels if cubin.section(f".nv.constant0.{one}") is not None] or list(cubin.kernels)
    if not kernels:
        raise InvalidValue(f"{whose} holds no code; give a cubin with a kernel")
    if not name and len(kernels) > 1:
        listed = ", ".join(demangle.shown(one) for one in kernels[:20])
        more = f" and {len(kernels) - 20} more" if len(kernels) > 20 else ""
        raise InvalidValue(f"{whose} holds {len(kernels)} kernels ({listed}{more}); name one by --kernel")
    chosen = kernels[0] if not name else name if name in cubin.kernels else demangle.chosen(name, kernels,
                                                                                            f"{whose} holds")
    return chosen, tuple(one for one in kernels if one != chosen)


def launched(subject: Subject, threads: int | None, shared: int | None) -> Subject:
    """``subject`` with the threads and dynamic shared memory of a launch, as told or as the cubin bounds them."""
    return replace(subject, threads=threads or subject.threads or subject.bounded_threads,
                   dynamic_shared=shared if shared is not None else subject.dynamic_shared)
