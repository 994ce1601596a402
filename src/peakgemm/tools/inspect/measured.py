"""What was measured of a rung or a kernel of the library, from the records of a checkout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...runtime.architectures import ARCHITECTURES
from ..bench.records import runs_of
from .subject import Subject

#: results/ of a checkout; a wheel has none.
RESULTS = Path(__file__).resolve().parents[4] / "results"
_RECORDS = ("ladder.json", "bench-ieee.json", "bench-emulated.json")


def measured(subject: Subject, results: Path | None = None) -> dict[str, Any] | None:
    """The fastest row of the records under ``results`` that ran this configuration on this architecture; or None.

    Rows of the shape that was asked for go first, then those of the GPU that the architecture is best known by. It has
    ``gpu``, ``record``, ``shape``, ``tflops`` and ``ratio_to_cublas``.
    """
    if subject.config is None or subject.kernel is None:
        return None
    rows = [row for row in _rows(results or RESULTS, subject.arch) if _is(row, subject)]
    if not rows:
        return None
    limits = ARCHITECTURES.get(subject.arch)
    known = limits.gpu.split()[0] if limits else ""
    best = max(rows, key=lambda row: (subject.shape is not None and tuple(row["shape"]) == subject.shape,
                                      known in row["gpu"], float(row["tflops"])))
    return {name: best[name] for name in ("gpu", "record", "shape", "tflops", "ratio_to_cublas")}


def _rows(results: Path, arch: str) -> Iterator[dict[str, Any]]:
    for folder in sorted(path for path in results.glob("*") if path.is_dir()):
        for name in _RECORDS:
            try:
                data = json.loads((folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if data.get("schema") != 1 or data.get("arch") != arch or not data.get("device"):
                continue
            for run in runs_of(data):
                for row in run.get("rungs", ()):
                    if row.get("tflops"):
                        yield {"shape": run.get("shape"), **row, "gpu": data["device"]["name"],
                               "record": f"{folder.name}/{name}"}


def _is(row: Mapping[str, Any], subject: Subject) -> bool:
    assert subject.config is not None and subject.kernel is not None
    if row.get("config") != subject.config.to_json():
        return False
    if subject.kind == "rung":
        return row.get("number") == subject.kernel.number
    return row.get("kernel") == subject.kernel.name and "number" not in row
