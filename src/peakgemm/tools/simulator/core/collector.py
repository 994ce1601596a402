"""Python's collector of cycles, called less often while a kernel is simulated.

A program is some hundred thousand objects that live as long as its runs. Whenever 700 more have been made the collector
looks through the youngest, and now and then through all: a quarter of the time of small products on tensor cores.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

THRESHOLD = 200_000  # objects made and not freed, before the youngest are looked through
_LOCK = Lock()  # guards what follows: runs of several threads overlap
_runs = 0
_usual = gc.get_threshold()


@contextmanager
def seldom() -> Iterator[None]:
    """Within the block the collector is called for every `THRESHOLD` objects, in all threads; as before after the last
    such block. Where it was never called (a threshold of 0), or less often, nothing changes."""
    global _runs, _usual
    with _LOCK:
        _runs += 1
        if _runs == 1:
            _usual = gc.get_threshold()
            if 0 < _usual[0] < THRESHOLD:
                gc.set_threshold(THRESHOLD, *_usual[1:])
    try:
        yield
    finally:
        with _LOCK:
            _runs -= 1
            if not _runs:
                gc.set_threshold(*_usual)
