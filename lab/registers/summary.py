"""What a record of `python -m lab.registers` says: a row a stream, and the errors of the model by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.registers.clock import Cycles
from lab.registers.shared_loads import predicted_shared
from lab.registers.streams import Stream, predicted, text


def row(kind: str, name: str | None, stream: Stream, cycles: Cycles | None = None) -> dict[str, Any]:
    """A stream, the model of one warp alone on its SM and (``model_shared``) of one a scheduler, and what was measured
    (cycles an instruction)."""
    found: dict[str, Any] = {"kind": kind, **({"name": name} if name else {}), "stream": text(stream),
                             "model": predicted(stream),
                             "model_shared": predicted_shared(stream)}
    if cycles is not None:
        found.update(cycles._asdict())
    return found


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By kind, in the order of ``rows``: how many streams, how many of them take the model's whole cycles a turn, and
    the mean and the largest error (cycles an instruction), of one warp alone, and of one a scheduler (``_shared``),
    each by its model; None where nothing was measured."""
    found = []
    for kind in dict.fromkeys(one["kind"] for one in rows):
        mine = [one for one in rows if one["kind"] == kind]
        alone, shared = ([abs(one[model] - one[which]) for one in mine if which in one]
                         for model, which in (("model", "alone"), ("model_shared", "one_warp")))
        lengths = [len(one["stream"].split(" | ")) for one in mine]
        exact = sum(error * length < 0.5 for error, length in zip(alone, lengths, strict=False))
        found.append({
            "kind": kind, "streams": len(mine), "exact": exact if alone else None,
            "mean_error": _mean(alone), "largest_error": max(alone, default=None),
            "mean_error_shared": _mean(shared), "largest_error_shared": max(shared, default=None)})
    return found


def _mean(errors: Sequence[float]) -> float | None:
    return sum(errors) / len(errors) if errors else None
