"""docs/record.schema.json, and what says that a record fits it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "record.schema.json").read_text())
CHECK = jsonschema_rs.validator_for(SCHEMA)  # 2 s for the published records; in Python 28


def validate(record: object) -> None:
    """Raise a ``jsonschema_rs.ValidationError`` that says where a record does not fit the schema."""
    CHECK.validate(record)
