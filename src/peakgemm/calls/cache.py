"""What calls are bound to, by what they are recognised by: one cache for every front door, emptied at one place.

A front door makes a key of what it sees of its operands, shapes and alignments among it, and looks it up in `calls`.
What it keeps there is its own: a launch with what it takes. Keys of different front doors never meet: torch's begin
with a shape, JAX's with the call as text, others with a name.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

LIMIT = 4096  # calls; then all are forgotten
calls: dict[Hashable, object] = {}

Entry = TypeVar("Entry")


def remember(key: Hashable, entry: Entry) -> Entry:
    """Keep ``entry`` for calls of that key, until tuning entries or profiles change."""
    from ..selection import tuned  # no product of host arrays waits for it

    tuned.cache_invalidators.add(calls.clear)
    if len(calls) >= LIMIT:
        calls.clear()
    calls[key] = entry
    return entry
