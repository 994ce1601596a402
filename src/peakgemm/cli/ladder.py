"""``peakgemm ladder``: every rung compiled, checked, analysed; timed where there is a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..kernels.registry import LADDER, numbers, rung, rungs, supported
from ..runtime import device
from ..runtime.architectures import architecture
from ..runtime.nvrtc import nvrtc_version
from ..runtime.source import header_comment
from ..tools.bench import columns as c
from ..tools.bench import records
from ..tools.bench.ladder import configurations, ladder, wrong
from ..tools.bench.simulated import LARGEST
from . import parse
from .console import err, number, out, progress, show
from .measuring import keep, measuring, why_not

Row = Mapping[str, Any]


def command(
    size: Annotated[str | None, typer.Option(help="Squares: N or N,N,...  [4096 with a GPU, else 512]")] = None,
    shape: Annotated[str | None, typer.Option(help="MxNxK, or several: C is M x N, the inner length K.")] = None,
    rungs_: Annotated[str | None, typer.Option(
        "--rungs", help=f"Of {numbers()}, such as 03,07-09 or warp_tile.  [all]")] = None,
    arch: Annotated[str | None, typer.Option(help="Compile for sm_NN.  [the GPU's, else sm_90]")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
    explain: Annotated[str | None, typer.Option(help="One rung in full: its idea, its facts.")] = None,
    configs: Annotated[bool, typer.Option("--configs", help="Named configurations instead of defaults.")] = False,
) -> None:
    """Every kernel from naive to tensor cores, compiled, checked, timed and explained."""
    gpu = device.find()
    target = parse.target(arch, gpu)
    selection = explain or rungs_
    chosen = rungs(selection) if selection else supported(architecture(target))
    wanted = parse.shapes(size, shape, 4096 if gpu else 512)
    records.check_writable(json)
    measured_on, peer = measuring(gpu, target)
    steps = len(wanted) * sum(len(configurations(k, target, configs)) for k in chosen) * 2
    with progress("compiling", steps) as done:
        runs = ladder(chosen, wanted, target, measured_on, peer, done, configs)
    left_out: dict[str, list[str]] = {}
    for kernel in LADDER:
        if not selection and (lacking := kernel.lacks(architecture(target))):
            left_out.setdefault(lacking, []).append(kernel.label)
    out.print(f"Compiled by NVRTC {nvrtc_version()}.\n")
    for run in runs:
        _show(run, target, gpu.name if measured_on and gpu else None)
    if explain:
        for kernel in chosen:
            out.print(f"\n{kernel.header}\n")
            out.print(header_comment(rung(kernel.number).header))
    for lacking, labels in left_out.items():
        out.print(f"\nLeft out on {target}, {lacking}: {', '.join(labels)}.")
    if peer is None:
        out.print(f"\nNot timed: {why_not(gpu, target)}.")
        if measured_on is None and not all(r["backend"] for run in runs for r in run["rungs"]):
            out.print(f"Not simulated: M N K is above {LARGEST:,}; one rung at a time: peakgemm simulate")
    keep(json, records.record(measured_on, target, runs, versions=peer.versions() if peer else None))
    off = wrong(runs)
    if off:
        err.print(f"Wrong products (off the FP64 bound, or with faults): {', '.join(off)}")
        raise typer.Exit(1)


def _show(run: Row, arch: str, gpu: str | None) -> None:
    rows: Sequence[Row] = run["rungs"]
    m, n, k = run["shape"]
    show(f"Resources: M, N, K = {m}, {n}, {k} on {arch}",
         (c.RUNG, c.TILE, c.Column("path", "path"), *c.RESOURCES, c.BLOCKS, c.LIMITED), rows)
    for r in rows:
        if r.get("patch"):
            out.print(f"{c.rung_name(r)}: {r['patch']}", style="dim")
    out.print()
    show("Main loop", (
        c.RUNG, c.INSTRUCTIONS, *c.LOOP, c.Column("LDS", lambda r: r["loads_in_a_row"] or None, 0), c.BYTES,
        c.Column("roof", "roofline_tflops", 1), c.Column("bits x loads and stores", lambda r: _widths(r["widths"]))),
        rows, "In %: FFMAs of the loop; banks: of FP32 peak, what register-bank conflicts leave, modelled. LDS: the\n"
        "most in a row, of which ten cost 4 % (docs/notebook/08). B/FLOP: bytes that the tiling asks of\n"
        "global memory; roof: the TFLOPS that its bandwidth allows if no cache helps.")
    if any(r["backend"] == "simulator" for r in rows):
        out.print()
        show("Simulated on the CPU, random data: shared-memory wavefronts, global sectors", (
            c.RUNG, c.ERRORS[0], c.Column("faults", "faults", 0), *_counted("wavefronts", "shared_wavefronts"),
            *_counted("sectors", "global_sectors")), rows,
            "error: largest |C - AB| / (eps |A||B|) against FP64. Wavefronts and sectors as Nsight Compute\n"
            "counts them; ideal: the same accesses without a bank conflict, perfectly coalesced; x: times ideal.")
    if any(r["tflops"] for r in rows):
        out.print()
        best = max(1.0, *(r["ratio_to_cublas"] for r in rows))
        show(f"Measured on {gpu}, random data; cuBLAS FP32: {number(rows[-1]['cublas_tflops'])} TFLOPS", (
            c.RUNG, c.TFLOPS, c.RATIO, c.Column("", lambda r: "█" * round(8 * r["ratio_to_cublas"] / best)), c.SPREAD,
            *c.ERRORS, *c.CLOCK, c.TIMED), rows,
            "ratio: to cuBLAS. error: largest |C - AB| / (eps |A||B|) against FP64, ours and cuBLAS's on the\n"
            "same operands.")


def _counted(header: str, name: str) -> tuple[c.Column, ...]:
    """A counter, what it would be at best, and how many times that it is."""
    return (c.Column(header, name, 0), c.Column("ideal", f"{name}_ideal", 0),
            c.Column("x", lambda r: r[name] / r[f"{name}_ideal"] if r[f"{name}_ideal"] else None, 1))


def _widths(widths: Mapping[str, Mapping[str, int]] | None) -> str:
    """``LDS 128x32`` for each opcode of the loop."""
    return " ".join(f"{opcode} " + "+".join(f"{bits}x{count}" for bits, count in by_width.items())
                    for opcode, by_width in (widths or {}).items())
