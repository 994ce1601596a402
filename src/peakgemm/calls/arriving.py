"""A panel on a device, or on its way there, which several threads see to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Any

from ..arrays.base import FLOAT, View
from ..runtime.memory import behind, event
from .deal import Claim, Key


class Panel:
    """Rows of A or columns of B on the device, or on their way there from the host, or from the device of a claim."""

    def __init__(self, memory: Any, view: View, size: int) -> None:
        self.memory, self.view, self.size = memory, view, size
        self.futures: list[Future[Any]] = []
        self.claim: Claim | None = None
        self.again: Any = None  # what to copy where the claim comes to nothing
        self.mark: Any = None
        self._settled = False

    def settle(self, streams: tuple[int, ...], inward: int) -> None:
        """All that ``streams`` do from now on waits for its copy, which is enqueued when this returns."""
        if self._settled:
            return
        marks = [future.result() for future in self.futures] + [self.mark]
        found = [mark for mark in marks if mark is not None]
        if not found and self.futures:
            found = [event(inward)]
        for mark in found:
            behind(mark, *streams)
        self.futures, self.mark, self._settled = [], None, True

    def end(self) -> None:
        """No thread copies to it any more, and it is not waited for."""
        for future in self.futures:
            with suppress(Exception):
                if (mark := future.result()) is not None:
                    behind(mark)
        if self.mark is not None:
            behind(self.mark)
        self.futures, self.mark = [], None


def columns_of(whole: View, key: Key) -> View:
    """The panel of B that ``key`` names, where all of B lies on the device."""
    assert whole.strides is not None
    return View(whole.pointer + FLOAT * key[1] * whole.strides[-1], (whole.shape[0], key[2] - key[1]), whole.strides)


def when_done(futures: list[Future[Any]], call: Callable[[bool], None]) -> None:
    """Call it in the thread that ends the last of the futures; with whether all have ended well."""
    left, well, lock = len(futures), True, Lock()

    def one(future: Future[Any]) -> None:
        nonlocal left, well
        with lock:
            left, well = left - 1, well and future.exception() is None
            if left:
                return
        call(well)

    for future in futures:
        future.add_done_callback(one)
