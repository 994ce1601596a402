"""What was measured to be fastest, by exact key: the user's tuning entries.

An entry is JSON: names and numbers, checked before they are used. What is damaged, or was measured
with another version of its kernel, is as good as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ..kernels.library import kernel_named
from ..kernels.widths import widths
from ..problem import Config, Problem, Triangle
from ..runtime.cache import tuned_folder
from ..runtime.source import essence

log = logging.getLogger("peakgemm")
SCHEMA = 1
#: What empties the caches of answers in modules above; `forget` calls each.
cache_invalidators: set[Callable[[], None]] = set()


def key(problem: Problem, precision: str = "ieee") -> str:
    """What an entry is found by: layout, M, N, K, products in the batch, the vector widths of A and of B, the
    triangle that is asked for, if one is, and the precision, unless it is ``"ieee"``. An entry of ``"emulated"`` holds
    the IEEE kernel that was timed against tensor cores; its default are these."""
    p = problem
    a, b = widths(p)
    name = f"{p.layout}-{p.m}x{p.n}x{p.k}-b{p.batch.count}-v{a}{b}"
    if p.triangle is not Triangle.NONE:
        name += f"-{p.triangle.name.lower()}"
    return name + (f"-{precision}" if precision != "ieee" else "")


def slug(device_name: str) -> str:
    """A device's name as a file's: ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def folder(device_name: str) -> Path:
    """Where the user's entries for a device lie, one file each."""
    return tuned_folder() / slug(device_name)


def lookup(problem: Problem, device_name: str, precision: str = "ieee") -> tuple[str, Config] | None:
    """Kernel's name and configuration; None: never tuned, or the default won. The caller asks whether the
    configuration is valid on its architecture.

    The folder is listed once a process and device: see `forget`.
    """
    if not slug(device_name):
        return None
    own = entry(device_name, key(problem, precision))
    return None if own is None or own["default"] else (own["kernel"], own["config"])


def entry(device_name: str, name: str) -> dict[str, Any] | None:
    """The user's entry under a key, checked, its ``config`` a `Config`; None without one that holds today."""
    place = folder(device_name)
    return _entry(place / f"{name}.json") if f"{name}.json" in _listed(place) else None


def forget() -> None:
    """Read folders again, as after an entry has been written, and decide again."""
    for cached in (_listed, _entry):
        cached.cache_clear()
    for also in tuple(cache_invalidators):
        also()


@cache
def digest(kernel: str) -> str:
    """Of a kernel's source, but for its comments: an entry holds for what was measured.

    Raises:
        InvalidValue: no such kernel.
    """
    return hashlib.sha256(essence(kernel_named(kernel).source).encode()).hexdigest()[:16]


@cache
def _listed(place: Path) -> frozenset[str]:
    try:
        return frozenset(file.name for file in place.iterdir())
    except OSError:  # not there, or not readable: nothing was tuned
        return frozenset()


@cache
def _entry(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        config = kernel_named(found["kernel"]).read(found["config"])
        if found.get("schema") != SCHEMA or found["digest"] != digest(found["kernel"]):
            return None
        return {**found, "config": config, "default": bool(found.get("default", False))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _say_once(str(path.parent), f"a damaged tuning entry is ignored: {path} ({error}); remove it, or run: "
                                    "peakgemm tune --again")
        return None


_said: set[str] = set()


def _say_once(about: str, message: str) -> None:
    """One warning for each folder, however many of its entries are damaged."""
    if about not in _said:
        _said.add(about)
        log.warning("peakgemm: %s", message)
