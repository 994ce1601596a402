"""Profiles as JSON: read and checked field by field, and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InvalidValue
from ..kernels import profile as of
from ..kernels.library import kernel_named
from ..kernels.profile import SCHEMA, Profile
from ..problem import Config

T = TypeVar("T")
REMEDY = "make it anew with: python -m lab.profile"
# Ending of a name -> what its number may be. Latencies that are differences may be below zero.
_RANGES = {"_per_us": (1, 1e12), "_us": (-1e3, 1e3), "_share": (1e-3, 2), "_factor": (0, 100), "_power": (0, 10),
           "_slots": (0, 1e3)}
_ANY = 0, 1e15
_WIDTH = 118


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
    if not isinstance(found, Mapping) or found.get("schema") != SCHEMA:
        version = found.get("schema") if isinstance(found, Mapping) else None
        raise InvalidValue(f"schema = {version!r}: this version reads profiles of schema {SCHEMA}; {REMEDY}")
    return _made(Profile, {name: value for name, value in found.items() if name != "schema"}, "")


def to_json(profile: Profile) -> dict[str, Any]:
    """What `parse` takes; of configurations the fields that are not their defaults."""
    def plain(value: Any) -> Any:
        if isinstance(value, Config):
            return value.set_fields()
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        if hasattr(value, "__dataclass_fields__"):
            return {f.name: plain(getattr(value, f.name)) for f in fields(value)
                    if f.default is MISSING or getattr(value, f.name) != f.default}
        return value
    return {"schema": SCHEMA, **plain(profile)}


def allowed(name: str) -> tuple[float, float]:
    """The least and the largest value that a number of that name may have."""
    return next((limits for end, limits in _RANGES.items() if name.endswith(end)), _ANY)


def dumps(found: Any, indent: int = 0) -> str:
    """JSON of a line for each object that fits one, and for each that holds nothing but numbers and words."""
    pad, flat = " " * indent, json.dumps(found)
    if isinstance(found, Mapping) and found and (indent == 0 or len(flat) + indent > _WIDTH) and (
            indent < 2 or any(isinstance(value, (dict, list)) for value in found.values())):
        inner = [f"{pad} {json.dumps(name)}: {dumps(value, indent + 1)}" for name, value in found.items()]
        return "{\n" + ",\n".join(inner) + f"\n{pad}}}"
    if isinstance(found, list) and any(isinstance(each, dict) for each in found):
        return "[\n" + ",\n".join(f"{pad} {dumps(each, indent + 1)}" for each in found) + f"\n{pad}]"
    return flat


def _made(cls: type[T], found: Any, where: str) -> T:
    """A dataclass of profile.py from a JSON object; ``where`` it lies, for messages."""
    if not isinstance(found, Mapping):
        raise InvalidValue(f"{where or 'the profile'} = {found!r} must be an object; {REMEDY}")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    prefix = f"{where}." if where else ""
    if unknown := sorted(set(found) - set(known)):
        raise InvalidValue(f"unknown field {prefix}{unknown[0]} = {found[unknown[0]]!r}; valid ones: "
                           f"{', '.join(known)}")
    missing = [name for name, f in known.items()
               if name not in found and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise InvalidValue(f"{prefix}{missing[0]} is missing; {REMEDY}")
    return cls(**{name: _config(found, value, prefix + name) if name == "config" else
                  _value(known[name], value, prefix + name) for name, value in found.items()})


def _config(row: Mapping[str, Any], found: Any, where: str) -> Config:
    """A configuration of the kernel that is named beside it; clusters are of one."""
    try:
        return kernel_named(row.get("kernel", "specialised")).read(found)
    except (AttributeError, TypeError, InvalidValue) as error:
        raise InvalidValue(f"{where} is no configuration ({error}); {REMEDY}") from None


def _value(f: Field[Any], value: Any, where: str) -> Any:
    """A field's value, checked by the type that profile.py declares."""
    kind = str(f.type)
    if kind.endswith(" | None"):
        if value is None:
            return None
        kind = kind.removesuffix(" | None")
    if kind.startswith("tuple["):
        if not isinstance(value, list):
            raise InvalidValue(f"{where} = {value!r} must be a list; {REMEDY}")
        each = kind.removeprefix("tuple[").removesuffix(", ...]")
        return tuple(_one(each, f.name, one, f"{where}[{i}]") for i, one in enumerate(value))
    return _one(kind, f.name, value, where)


def _one(kind: str, name: str, value: Any, where: str) -> Any:
    if kind in ("float", "int"):
        low, high = allowed(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        if not number or not low <= value <= high or (kind == "int" and value != int(value)):
            what = "an integer" if kind == "int" else "a number"
            raise InvalidValue(f"{where} = {value!r} must be {what} from {low:g} to {high:g}; {REMEDY}")
        return int(value) if kind == "int" else value
    simple: dict[str, type] = {"str": str, "bool": bool, "Mapping[str, Any]": dict}
    if kind in simple:
        if not isinstance(value, simple[kind]):
            raise InvalidValue(f"{where} = {value!r} must be a {simple[kind].__name__}; {REMEDY}")
        return value
    make: Callable[..., Any] = _made
    return make(getattr(of, kind), value, where)
