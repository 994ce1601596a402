"""docs/record.schema.json, and what says that a record fits it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "record.schema.json").read_text())


@cache
def check() -> Any:
    """The validator; a test that asks for it without jsonschema-rs is skipped. 2 s for the published records; in Python
    28."""
    return pytest.importorskip("jsonschema_rs", reason="needs jsonschema-rs").validator_for(SCHEMA)


def validate(record: object) -> None:
    """Raise a ``jsonschema_rs.ValidationError`` that says where a record does not fit the schema."""
    check().validate(record)
