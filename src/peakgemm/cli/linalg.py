"""``bench --suite linalg``: linear algebra beside torch's cuBLAS and cuSOLVER."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ..runtime import device
from ..tools.bench import records
from ..tools.bench.columns import Column
from ..tools.bench.peers import TorchPeer
from ..tools.bench.timer import Timer
from . import parse
from .console import err, out, progress, show
from .measuring import keep, measuring, why_not

COLUMNS = (Column("case", "name"), Column("precision", "precision"), Column("ms", "ms", 3),
           Column("torch's", "baseline_ms", 3), Column("TFLOPS", "tflops", 1), Column("ratio", "ratio", 2),
           Column("of product", "share_of_product", 2), Column("error", "max_error", 2),
           Column("torch's", "reference_error", 2))
CAPTION = ("ratio: torch's time over ours. of product: our time over our full product's.\n"
           "error: the largest residual over the norms of its row and column, in eps, in FP64.")


def bench(seconds: float, arch: str | None, json: Path | None) -> None:
    """Time every case of the suite; the record is written row by row."""
    gpu = device.find()
    target = parse.target(arch, gpu)
    records.check_writable(json)
    measured_on, peer = measuring(gpu, target)
    if measured_on is None or not isinstance(peer, TorchPeer):
        out.print("Not timed: the suite linalg runs beside torch, and "
                  + ("torch is missing; run: pip install torch" if peer else why_not(gpu, target)), soft_wrap=True)
        return
    from ..tools.bench import linalg

    rows: list[dict[str, Any]] = []
    chosen, timer = linalg.cases(), Timer(peer, seconds)
    with progress("measuring", len(chosen)) as done:
        for row in linalg.rows(chosen, measured_on, timer, done):
            rows.append(row)
            record = records.record(measured_on, target, [{"rungs": rows}], versions=peer.versions())
            if json is not None and records.replaceable(json):
                records.write(json, record)
    show("Linear algebra, random data", COLUMNS, [row for row in rows if "ms" in row], CAPTION)
    keep(json, record)
    failed = [row for row in rows if "error" in row]
    for row in failed:
        err.print(f"Failed: {row['name']}, {row['precision']}: {row['error']}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)
