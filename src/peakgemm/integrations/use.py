"""What `use()` of every library shares: blocks that nest, counts of what ran where, and the end of the outermost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import ContextDecorator, suppress
from threading import RLock
from typing import Any, NamedTuple

from ..errors import InvalidType, InvalidValue, OutOfMemory
from .recorder import Recorder

ON_FAULT = ("warn", "log", "raise")


def check_linalg(precision: str, linalg: bool) -> None:
    """Refuse linear algebra with a promise that it does not keep.

    Raises:
        InvalidValue: it is asked for with a reproducible precision.
    """
    if precision == "reproducible" and linalg:
        raise InvalidValue("linalg=True: linear algebra keeps no promise of reproducible=True, since its blocks depend "
                           "on the size; leave out one of the two")


def check_share(certify: float) -> None:
    """Refuse what is no share of the products to certify.

    Raises:
        InvalidValue: no number from 0 to 1.
    """
    if not isinstance(certify, (int, float)) or not 0 <= certify <= 1:
        raise InvalidValue(f"certify = {certify!r} is no share of the products; pass a number from 0 to 1: 0.01 for "
                           "one in a hundred")


class Block(NamedTuple):
    """What one ``with`` asks for; see `peakgemm.torch.use`, which alone takes the last two. Where a ``recorder``
    follows, products that the library may run in TF32 stay with it: they are faster there."""

    precision: str
    linalg: bool = False
    recorder: Recorder | None = None
    certify: float = 0.0
    on_fault: str = "warn"


class Rerouted:
    """The rerouting in force: how many calls of each op peakgemm ran, and how many went on to the library.

    ``calls`` and ``fallbacks`` count by op, ``"mm"`` or ``"addmm.out"``; nested blocks share them. ``blocks`` are those
    that were entered, the innermost last, which holds. ``recorder``: of the innermost block that has one.
    """

    library: str

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.calls: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.recorder: Recorder | None = None
        self.broken = ""  # why peakgemm can run nothing here

    def refused(self, error: Exception) -> str:
        """Why a call that raised ``error`` is the library's. One that concerns no arguments, but the compiler say, or
        the driver, is not tried a second time; it is raised where the program asked for peakgemm itself.

        Raises:
            Exception: ``error``.
        """
        why = str(error).partition(";")[0].partition("\n")[0]
        if isinstance(error, (InvalidValue, InvalidType)):
            return f"refused: {why}"
        if self.blocks[-1].recorder is None:
            raise error
        if not isinstance(error, OutOfMemory):
            self.broken = f"peakgemm cannot run: {why}"
        return f"refused: {why}"

    def enter(self, block: Block) -> None:
        """Let ``block`` hold."""
        self.blocks.append(block)
        self.recorder = block.recorder or self.recorder

    def leave(self, block: Block) -> None:
        """Let the block before ``block`` hold, or where another one was entered later, that one."""
        places = [i for i, other in enumerate(self.blocks) if other is block]
        del self.blocks[places[-1]]
        self.recorder = next((x.recorder for x in reversed(self.blocks) if x.recorder), None)

    def restore(self) -> None:
        """Give the library its own functions back."""
        raise NotImplementedError

    def count(self, op: str, shape: Any, flops: float, why: str) -> None:
        """A call by peakgemm, or where there is a reason ``why``, by the library."""
        (self.fallbacks if why else self.calls)[op] += 1
        if self.recorder is not None:
            self.recorder.add(self.library, op, shape, flops, why)

    def clocked(self, op: str, shape: Any, why: str, like: Any, work: Callable[[], Any]) -> Any:
        """``work()`` of a call that is counted next; now and then with its time by the device's clock, of the array
        ``like``."""
        recorder = self.recorder
        if recorder is None or not recorder.is_clocked(key := (self.library, op, shape, why)):
            return work()
        end = None
        with suppress(Exception):  # the program goes on without a time
            end = self.span(like)
        result = work()
        if end is not None and result is not None:
            with suppress(Exception):
                recorder.clock(key, *end())
        return result

    def span(self, like: Any) -> Callable[[], tuple[Callable[[], bool], Callable[[], float]]] | None:
        """Begin to measure on the current stream of the device of ``like``: what ends that, and returns what
        `Recorder.clock` takes; None: nothing can be measured."""
        return None

    def __str__(self) -> str:
        """What was changed and what was left, by op."""
        def counts(of: Counter[str]) -> str:
            return ", ".join(f"{count} {op}" for op, count in of.items()) or "nothing"

        block = self.blocks[-1]
        return (f"peakgemm.{self.library}.use(precision={block.precision!r}{', linalg=True' * block.linalg}): peakgemm "
                f"ran {counts(self.calls)}; {self.library} ran {counts(self.fallbacks)} (other dtypes, devices or "
                "shapes)")


_log = logging.getLogger("peakgemm")
_lock = RLock()
_reported: set[str] = set()  # keys whose first block has ended: what it did is said once
active: dict[str, Any] = {}  # what is in force, by key


class Use(ContextDecorator):
    """What `use()` returns: a context manager and decorator that can be entered again and again."""

    def __init__(self, key: str, make: Callable[[], Rerouted], block: Block) -> None:
        self._key, self._make, self._block = key, make, block

    def __enter__(self) -> Any:
        with _lock:
            rerouted = active.get(self._key) or self._make()
            rerouted.enter(self._block)
            active[self._key] = rerouted
            return rerouted

    def __exit__(self, *exc: object) -> None:
        with _lock:
            rerouted = active[self._key]
            if len(rerouted.blocks) > 1:
                rerouted.leave(self._block)
                return
            del active[self._key]
            if self._key not in _reported:
                _reported.add(self._key)
                _log.info("%s", rerouted)
            rerouted.restore()
