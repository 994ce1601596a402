"""``peakgemm sweep``: rung 11 over its tile sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidValue
from ..runtime import device
from ..runtime.architectures import architecture
from ..tools.bench import columns as c
from ..tools.bench import records
from ..tools.bench.sweep import published, space, sweep
from . import parse
from .console import number, out, progress, show
from .measuring import keep, measuring


def command(
    size: Annotated[str | None, typer.Option(help="Square N.  [4096]")] = None,
    shape: Annotated[str | None, typer.Option(help="MxNxK.")] = None,
    tile: Annotated[list[str] | None, typer.Option(help="bm,bk,bn,rm,rn[,db]: only these tiles.")] = None,
    more: Annotated[int, typer.Option(min=0, help="Further tiles beside the eight published ones.")] = 0,
    arch: Annotated[str | None, typer.Option(help="Compile for sm_NN.  [the GPU's, else sm_90]")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
) -> None:
    """The published tile table on the GPU at hand, and any tiles beside it."""
    gpu = device.find()
    target = parse.target(arch, gpu)
    shapes = parse.shapes(size, shape, 4096)
    if len(shapes) > 1:
        raise InvalidValue(f"sweep takes one shape, not {len(shapes)}")
    configs = [parse.tile(t) for t in tile] if tile else published() + space(architecture(target), more)
    records.check_writable(json)
    measured_on, peer = measuring(gpu, target)
    with progress("compiling", len(configs) * (2 if peer else 1)) as done:
        rows = sweep(configs, shapes[0], target, measured_on, peer, done)
    _show(rows, target, shapes[0])
    run = {"shape": list(shapes[0]), "rungs": rows}
    keep(json, records.record(measured_on, target, [run], versions=peer.versions() if peer else None))


def _show(rows: list[dict[str, Any]], arch: str, shape: tuple[int, int, int]) -> None:
    good = [row for row in rows if "refused" not in row]
    show(f"Tiles of rung 11: M, N, K = {', '.join(map(str, shape))}, {arch}",
         (*c.TILES, c.DOUBLE, *c.RESOURCES, c.WARPS, c.LIMITED, *c.LOOP, c.TFLOPS, c.RATIO), good,
         "warps: per SM. FFMA, banks: % of the loop, modelled % of peak that banks leave. ratio: to cuBLAS.")
    for r in rows:
        if "refused" in r:
            out.print(f"refused: {r['config']}: {r['refused'].splitlines()[-1]}")
    if good and good[0]["tflops"]:
        best, worst = (number(r["ratio_to_cublas"], 3) for r in (good[0], good[-1]))
        out.print(f"\nBest {best} of cuBLAS, worst {worst}.")
