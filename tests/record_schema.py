"""docs/record.schema.json for tens of thousands of rows.

jsonschema makes a validator for each value that it comes to, and looks each ``$ref`` up again: 28 s for the published
records. Here each part of the schema has one validator for all values: 17 s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "record.schema.json").read_text())
Errors = Iterator[ValidationError]
_known: dict[int, Any] = {}


def validate(record: Any) -> None:
    """Raise a ValidationError where a record does not fit the schema."""
    if next(_errors(SCHEMA, record), None) is not None:
        Draft202012Validator(SCHEMA).validate(record)  # says where it does not


def _errors(part: Any, value: Any) -> Errors:
    if id(part) not in _known:
        _known[id(part)] = _Validator(part)
    return _known[id(part)].iter_errors(value)


@cache
def _named(ref: str) -> Any:
    return reduce(lambda part, name: part[name], ref.removeprefix("#/").split("/"), SCHEMA)


def _properties(_: Any, properties: Any, value: Any, part: Any) -> Errors:
    if isinstance(value, dict):
        for name in properties.keys() & value.keys():
            yield from _errors(properties[name], value[name])


def _items(_: Any, items: Any, value: Any, part: Any) -> Errors:
    if isinstance(value, list):
        for each in value:
            yield from _errors(items, each)


def _if(_: Any, condition: Any, value: Any, part: Any) -> Errors:
    branch = "then" if next(_errors(condition, value), None) is None else "else"
    if branch in part:
        yield from _errors(part[branch], value)


_Validator = extend(Draft202012Validator, {
    "$ref": lambda _, ref, value, part: _errors(_named(ref), value), "properties": _properties, "items": _items,
    "if": _if})
