"""``--suite linalg`` of `bench`: linear algebra beside torch's cuBLAS and cuSOLVER."""

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


def bench(seconds: float, arch: str | None, json: Path | None) -> None:
    """Time every case of the suite; the record is written row by row."""
    gpu = device.find()
    target = parse.target(arch, gpu)
    records.check_writable(json)
    measured_on, peer = measuring(gpu, target)
    if measured_on is None or not isinstance(peer, TorchPeer):
        out.print("Not timed: the suite linalg is timed beside torch's cuBLAS and cuSOLVER, and "
                  + ("CuPy's are here; run: pip install torch" if peer else why_not(gpu, target)))
        return
    from ..tools.bench import linalg

    rows: list[dict[str, Any]] = []
    chosen = linalg.cases()
    with progress("measuring", len(chosen)) as done:
        for row in linalg.rows(chosen, measured_on, peer, Timer(peer, seconds), done):
            rows.append(row)
            if json is not None and records.replaceable(json):
                records.write(json, records.record(measured_on, target, [{"rungs": rows}], versions=peer.versions()))
    show("linear algebra, random data", (
        Column("case", "name"), Column("precision", "precision"), Column("ms", "ms", 3),
        Column("torch's", "baseline_ms", 3), Column("TFLOPS", "tflops", 1), Column("ratio", "ratio", 2),
        Column("of product", "share_of_product", 2), Column("error", "max_error", 2),
        Column("torch's", "reference_error", 2)), [row for row in rows if "ms" in row],
        "ratio: torch's time over ours. of product: time over our full product's.\n"
        "error: largest residual over the norms of its row and column, in eps, in FP64.")
    keep(json, records.record(measured_on, target, [{"rungs": rows}], versions=peer.versions()))
    if failed := [row for row in rows if "error" in row]:
        for row in failed:
            err.print(f"Failed: {row['name']}, {row['precision']}: {row['error']}", soft_wrap=True)
        raise typer.Exit(1)
