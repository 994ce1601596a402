"""What calls are bound to, by what they are recognised by: one cache for every front door, emptied at one place.

A front door makes a key of what it sees of its operands, shapes and alignments among it, and looks it up in `calls`.
`launch.BoundCall` is what is kept for arrays on the GPU. Keys of different front doors never meet: torch's begin with
a shape, those of other libraries' arrays with the device's index, JAX's under ``jit`` with the call as text, others
with a name.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

LIMIT = 4096  # calls; then all are forgotten
calls: dict[Hashable, Any] = {}

Entry = TypeVar("Entry")


def remember(key: Hashable, entry: Entry, kept: dict[Hashable, Any] = calls) -> Entry:
    """Keep ``entry`` for calls of that key, until tuning entries or profiles change; in a plan's own ``kept`` for as
    long as the plan is used."""
    from ..selection import tuned  # no product of host arrays waits for it

    tuned.cache_invalidators.add(calls.clear)
    if len(kept) >= LIMIT:
        kept.clear()
    kept[key] = entry
    return entry
