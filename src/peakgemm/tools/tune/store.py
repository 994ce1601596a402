"""Tuning entries on disk: one JSON for each GPU and key, written aside and renamed in."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

from ...errors import InvalidValue
from ...kernels.profile import Profile
from ...problem import Problem
from ...runtime import cache
from ...selection import profile_file, tuned
from ...selection.machine import kept_path
from ...version import __version__
from ..bench import records
from .halving import Outcome


def save(device_name: str, problem: Problem, outcome: Outcome, default_source: str, precision: str = "ieee") -> Path:
    """Keep what a search decided.

    A default that stays is kept as such, so that a later version may choose a better one; where it is
    the user's own entry from an earlier search (``default_source`` is ``tuned``) that entry stays.

    Raises:
        InvalidValue: the folder cannot be written, or others may write to it.
    """
    held = outcome.winner if precision == "ieee" or outcome.best is None else outcome.best  # see `tuned.key`
    kernel, config, key = held.kernel, held.config, tuned.key(problem, precision)
    path = folder(device_name) / f"{key}.json"
    if not outcome.replaced and default_source == "tuned":
        return path
    records.write(path, {
        "schema": tuned.SCHEMA, "device": device_name, "key": key, "kernel": kernel.name,
        "config": config.to_json(), "default": not outcome.replaced, "ratio": outcome.ratio,
        "spread": list(outcome.spread), "timed": outcome.timed,
        "digest": tuned.digest(kernel.name), "peakgemm": __version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    })
    tuned.forget()
    return path


def save_profile(device_name: str, profile: Profile, path: Path | None = None) -> Path:
    """Keep a profile for GPUs of a name, or write it to a file; where it lies.

    Raises:
        InvalidValue: the folder cannot be written, or others may write to it.
    """
    if path is None:
        path = folder(device_name) / kept_path(device_name).name
    records.write_text(path, json.dumps(profile_file.to_json(profile), indent=1) + "\n")
    tuned.forget()
    return path


def folder(device_name: str) -> Path:
    """The folder of a device's entries, made if need be.

    Raises:
        InvalidValue: it cannot be made or written, or others may write to it.
    """
    place = tuned.folder(device_name)
    for path in (place.parent, place):
        trouble = cache.trouble(path)
        if trouble:
            raise InvalidValue(f"no tuning entry can be kept in {path}: {trouble}")
    if not os.access(place, os.W_OK):
        raise InvalidValue(f"no tuning entry can be kept in {place}: it cannot be written. Set PEAKGEMM_CACHE_DIR to "
                           "a folder that can")
    return place
