"""Streams of FFMAs and others with chosen registers, timed on the GPU beside the model (docs/register-file.md).

    python -m lab.registers --streams 480 --seed 10 --json results/h100/registers.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lab.registers import clock as stream_clock
from lab.registers.kinds import KINDS, NAMED, drawn, from_pattern
from lab.registers.streams import ARCH, Bed, Stream
from lab.registers.summary import row, summaries
from lab.runner import run
from peakgemm.cli.console import number, out, progress, table
from peakgemm.runtime import device
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench import records


def command(
    streams: Annotated[int, typer.Option(min=len(KINDS), max=2000, help="How many streams are drawn beside the named "
                                         "ones.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the drawn streams.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what the model says, without a GPU.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
) -> None:
    """Run streams of FFMAs and others with chosen registers on the GPU at hand, beside the register file's model."""
    records.check_writable(json)
    gpu = None if dry_run else device.require()
    bed = Bed.make()
    chosen: list[tuple[str, str | None, Stream]] = [
        ("named", name, from_pattern(pattern, bed)) for name, pattern, _ in NAMED]
    chosen += [(kind.name, None, stream) for kind, stream in drawn(streams, seed, bed)]
    rows, overhead = _rows(chosen, gpu, bed)
    _show(rows, gpu, overhead)
    if json is not None:
        found: dict[str, Any] = {"streams": rows, "kinds": summaries(rows)}
        records.write(json, records.record(gpu, ARCH, [found], seed=seed, **overhead))
        out.print(f"Record written to {json}", markup=False)


def _rows(chosen: list[tuple[str, str | None, Stream]], gpu: Gpu | None,
          bed: Bed) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    if gpu is None:
        return [row(*one) for one in chosen], {}
    with stream_clock.Clock(gpu, bed) as clock, progress("streams", len(chosen)) as done:
        rows = []
        for kind, name, stream in chosen:
            rows.append(row(kind, name, stream, clock.cycles(stream)))
            done(kind)
        return rows, {"loop_overhead": list(clock.overhead)}


def _show(rows: list[dict[str, Any]], gpu: Gpu | None, overhead: dict[str, Any]) -> None:
    where = gpu.name if gpu else f"{ARCH}, the model alone"
    table(f"Register reads: cycles an instruction, {where}", [
        ("stream", "left"), ("model", "right"), ("alone", "right"), ("shared", "right"), ("one warp", "right"),
        ("two", "right")],
        [[one["name"], *(number(one.get(key), 3)
                         for key in ("model", "alone", "model_shared", "one_warp", "two_warps"))]
         for one in rows if one["kind"] == "named"],
        "Model, measured: one warp alone on its SM; shared, one warp: one a scheduler; two a scheduler.\n"
        "What the loop itself costs is taken off: "
        f"{', '.join(f'{each:.3f}' for each in overhead['loop_overhead'])} an instruction." if overhead else "")
    out.print()
    about = {kind.name: kind.what for kind in KINDS} | {"named": "those above"}
    table("By kind: model less measurement", [
        ("kind", "left"), ("streams", "right"), ("exact", "right"), ("mean", "right"), ("most", "right"),
        ("shared", "right"), ("most", "right"), ("what", "left")],
        [[one["kind"], str(one["streams"]), number(one["exact"], 0), number(one["mean_error"], 4),
          number(one["largest_error"], 3), number(one["mean_error_shared"], 4), number(one["largest_error_shared"], 3),
          about[one["kind"]]] for one in summaries(rows)],
        "Errors in cycles an instruction, of one warp alone on its SM; shared: one a scheduler, by its model.\n"
        "Exact: the same number of whole cycles a turn.")


if __name__ == "__main__":
    run(command)
