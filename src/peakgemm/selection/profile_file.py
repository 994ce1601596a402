"""Profiles as JSON: read and checked field by field, and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InvalidValue
from ..kernels import profile as of
from ..kernels.profile import SCHEMA, Profile

T = TypeVar("T")
REMEDY = "make it anew with: python -m lab.choice fit"
# Ending of a name -> the largest value that its number may have; the least is 0.
LIMITS = {"_us": 1e3, "_share": 2.0, "_factor": 100.0, "_slots": 1e3, "_cycles": 1e4}


def read(path: Path) -> Profile:
    """The profile in a file.

    Raises:
        InvalidValue: it cannot be read, or a field is missing, unknown, or has a value that it may not have.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{path} holds no profile ({error}); {REMEDY}") from None
    try:
        return parse(found)
    except InvalidValue as error:
        raise InvalidValue(f"{path}: {error}") from None


def parse(found: Any) -> Profile:
    """A profile of a JSON object.

    Raises:
        InvalidValue: a field is missing, unknown, or has a value that it may not have; the message names it.
    """
    version = found.get("schema") if isinstance(found, Mapping) else None
    if version != SCHEMA:
        raise InvalidValue(f"schema = {version!r}: this version reads profiles of schema {SCHEMA}; {REMEDY}")
    return _made(Profile, {name: value for name, value in found.items() if name != "schema"}, "")


def to_json(profile: Profile) -> dict[str, Any]:
    """What `parse` takes."""
    return {"schema": SCHEMA, **asdict(profile)}


def _made(cls: type[T], found: Any, where: str) -> T:
    """A dataclass of profile.py from a JSON object; ``where`` it lies, for messages."""
    if not isinstance(found, Mapping):
        raise InvalidValue(f"{where.rstrip('.')} = {found!r} must be an object; {REMEDY}")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(found) - set(known)):
        raise InvalidValue(f"unknown field {where}{unknown[0]} = {found[unknown[0]]!r}; valid ones: {', '.join(known)}")
    if missing := [name for name, f in known.items()
                   if name not in found and f.default is MISSING and f.default_factory is MISSING]:
        raise InvalidValue(f"{where}{missing[0]} is missing; {REMEDY}")
    return cls(**{name: _value(known[name], value, where + name) for name, value in found.items()})


def _value(f: Field[Any], value: Any, where: str) -> Any:
    """A field's value, checked by the type that profile.py declares."""
    kind = str(f.type)
    if kind.startswith("float"):
        if value is None and kind.endswith("None"):
            return None
        most = next(limit for end, limit in LIMITS.items() if f.name.endswith(end))
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        if not number or not 0 <= value <= most:
            raise InvalidValue(f"{where} = {value!r} must be a number from 0 to {most:g}; {REMEDY}")
        return value
    if kind in ("str", "Mapping[str, Any]"):
        wanted = str if kind == "str" else dict
        if not isinstance(value, wanted):
            raise InvalidValue(f"{where} = {value!r} must be a {wanted.__name__}; {REMEDY}")
        return value
    return _made(getattr(of, kind), value, f"{where}.")
