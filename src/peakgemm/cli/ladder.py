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
from ..tools.bench import records
from ..tools.bench.ladder import configurations, ladder, wrong
from ..tools.bench.simulated import LARGEST
from . import parse
from .console import err, number, out, progress, table
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
    out.print(f"Compiled by NVRTC {nvrtc_version()}.\n", markup=False)
    for run in runs:
        _show(run, target, gpu.name if measured_on and gpu else None)
    if explain:
        for kernel in chosen:
            out.print(f"\n{kernel.header}\n", markup=False)
            out.print(header_comment(rung(kernel.number).header), markup=False)
    for lacking, labels in left_out.items():
        out.print(f"\nLeft out on {target}, {lacking}: {', '.join(labels)}.", markup=False)
    if peer is None:
        out.print(f"\nNot timed: {why_not(gpu, target)}.", markup=False)
        if measured_on is None and not all(r["backend"] for run in runs for r in run["rungs"]):
            out.print(f"Not simulated: M N K is above {LARGEST:,}; one rung at a time: peakgemm simulate", markup=False)
    keep(json, records.record(measured_on, target, runs, versions=peer.versions() if peer else None))
    off = wrong(runs)
    if off:
        err.print(f"Wrong products (off the FP64 bound, or with faults): {', '.join(off)}", markup=False)
        raise typer.Exit(1)


def _show(run: Row, arch: str, gpu: str | None) -> None:
    rows: Sequence[Row] = run["rungs"]
    m, n, k = run["shape"]
    table(f"Resources: M, N, K = {m}, {n}, {k} on {arch}", [
        ("rung", "left"), ("block x BK / thread", "left"), ("path", "left"), ("regs", "right"), ("spill", "right"),
        ("shared", "right"), ("thr", "right"), ("blk/SM", "right"), ("limited by", "left"),
    ], [[_label(r), _tile(r["config"]), r["path"], str(r["registers"]), str(r["spill_bytes"]), str(r["shared_bytes"]),
         str(r["threads"]), str(r["blocks_per_sm"]), r["limited_by"]] for r in rows])
    for r in rows:
        if r.get("patch"):
            out.print(f"{_label(r)}: {r['patch']}", style="dim", markup=False)
    out.print()
    table("Main loop", [
        ("rung", "left"), ("instr", "right"), ("FFMA %", "right"), ("banks %", "right"), ("LDS", "right"),
        ("B/FLOP", "right"), ("roof", "right"), ("bits x loads and stores", "left"),
    ], [[_label(r), str(r["loop_instructions"] or "-"), number(_percent(r["ffma_fraction"])),
         number(_percent(r["bank_ceiling"])), str(r["loads_in_a_row"] or "-"), number(r["bytes_per_flop"], 3),
         number(r["roofline_tflops"]), _widths(r["widths"])] for r in rows],
        "banks: share of FP32 peak that register-bank conflicts leave, modelled. LDS: the most in a row,\n"
        "of which ten cost 4 % (docs/notebook/08). B/FLOP: bytes that the tiling asks of global memory;\n"
        "roof: the TFLOPS that its bandwidth allows if no cache helps.")
    if any(r["backend"] == "simulator" for r in rows):
        out.print()
        _show_simulated(rows)
    if not any(r["tflops"] for r in rows):
        return
    out.print()
    best = max(1.0, *(r["ratio_to_cublas"] for r in rows))
    table(f"Measured on {gpu}, random data; cuBLAS FP32: {number(rows[-1]['cublas_tflops'])} TFLOPS", [
        ("rung", "left"), ("TFLOPS", "right"), ("of cuBLAS", "right"), ("", "left"), ("10-90 %", "left"),
        ("error", "right"), ("cuBLAS's", "right"), ("MHz", "right"), ("W", "right"), ("timed", "left"),
    ], [[_label(r), number(r["tflops"], 2), number(r["ratio_to_cublas"], 3),
         "█" * round(8 * r["ratio_to_cublas"] / best),
         "-".join(number(x, 3) for x in r["ratio_spread"]), number(r["max_error"], 2), number(r["reference_error"], 2),
         number(r["sm_clock_mhz"], 0), number(r["power_w"], 0), r["mode"]] for r in rows],
        "error: largest |C - AB| / (eps |A||B|) against FP64, ours and cuBLAS's on the same operands.")


def _show_simulated(rows: Sequence[Row]) -> None:
    table("Simulated on the CPU, random data: shared-memory wavefronts, global sectors", [
        ("rung", "left"), ("error", "right"), ("faults", "right"), ("wavefronts", "right"), ("ideal", "right"),
        ("", "right"), ("sectors", "right"), ("ideal", "right"), ("", "right"),
    ], [[_label(r), number(r["max_error"], 2), str(r["faults"]), f"{r['shared_wavefronts']:,}",
         f"{r['shared_wavefronts_ideal']:,}", _times(r["shared_wavefronts"], r["shared_wavefronts_ideal"]),
         f"{r['global_sectors']:,}", f"{r['global_sectors_ideal']:,}",
         _times(r["global_sectors"], r["global_sectors_ideal"])] for r in rows],
        "error: largest |C - AB| / (eps |A||B|) against FP64. Wavefronts and sectors as Nsight Compute\n"
        "counts them; ideal: the same accesses without a bank conflict, perfectly coalesced.")


def _times(count: int, ideal: int) -> str:
    return "-" if not ideal else f"{count / ideal:.1f}x"


def _label(row: Row) -> str:
    return f"{row['number']:02} {row['config_name'] or row['name'].replace('_', ' ')}"


def _tile(c: Row) -> str:
    extras = f" {c['stages']}st" if c["stages"] > 1 else ""
    return f"{c['bm']}x{c['bn']}x{c['bk']}/{c['tm']}x{c['tn']}{extras}"


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _widths(widths: Mapping[str, Mapping[str, int]] | None) -> str:
    """``LDS 128x32`` for each opcode of the loop."""
    return " ".join(f"{opcode} " + "+".join(f"{bits}x{count}" for bits, count in by_width.items())
                    for opcode, by_width in (widths or {}).items())
