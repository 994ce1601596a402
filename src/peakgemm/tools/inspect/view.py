"""A kernel, its listing and its figures together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .facts import facts
from .listing import Listing, read
from .subject import Subject


@dataclass(frozen=True)
class View:
    """What was looked at, its listing, and the figures as docs/inspect.md tells them."""

    subject: Subject
    listing: Listing
    facts: dict[str, Any]


def view(subject: Subject, with_text: bool = False) -> View:
    """Look at ``subject``; see `listing.read` and `facts.facts`."""
    listing = read(subject, with_text)
    return View(subject, listing, facts(subject, listing))
