"""What a record of `peakgemm inspect registers` says: a row a stream, and the errors of the model by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .streams import Stream, predicted, text


def row(kind: str, name: str | None, stream: Stream, cycles: tuple[float, float] | None = None) -> dict[str, Any]:
    """A stream, the model, and what was measured with one and with two warps a scheduler (cycles an instruction)."""
    found: dict[str, Any] = {"kind": kind, **({"name": name} if name else {}), "stream": text(stream),
                             "model": predicted(stream)}
    if cycles is not None:
        found["one_warp"], found["two_warps"] = cycles
    return found


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By kind, in the order of ``rows``: how many streams, how many of them take the model's whole cycles a turn, and
    the mean and the largest error (cycles an instruction, one warp a scheduler); None where nothing was measured."""
    found = []
    for kind in dict.fromkeys(one["kind"] for one in rows):
        mine = [one for one in rows if one["kind"] == kind]
        errors = [abs(one["model"] - one["one_warp"]) for one in mine if "one_warp" in one]
        lengths = [len(one["stream"].split(" | ")) for one in mine]
        exact = sum(error * length < 0.5 for error, length in zip(errors, lengths, strict=False))
        found.append({
            "kind": kind, "streams": len(mine), "exact": exact if errors else None,
            "mean_error": sum(errors) / len(errors) if errors else None,
            "largest_error": max(errors, default=None)})
    return found
