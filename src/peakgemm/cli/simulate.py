"""``peakgemm simulate``: a kernel's PTX on the CPU, or a whole call's: result, counters, faults, annotated source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..calls.request import check_precision
from ..errors import InvalidValue
from ..kernels.registry import rungs
from ..runtime.architectures import architecture
from ..tools.bench import records
from ..tools.bench.simulated import SimulatedCall, matrices, simulate_call, simulated_row
from ..tools.bench.suites import cases
from ..tools.simulator import Report, run, run_rung
from ..tools.simulator.expected import compare, reference
from ..tools.simulator.front import demangle
from ..tools.simulator.listing import annotated
from . import parse
from .console import err, out, table, waiting
from .measuring import keep
from .options import OF_KERNELS, Arguments, Block, Grid, Includes, Macros, Shared
from .own import own_launch

MATMUL = "matmul"
SHORT = ("shared_loads", "shared_stores", "shared_wavefronts", "shared_wavefronts_ideal", "global_requests",
         "global_sectors", "global_sectors_ideal", "global_bytes", "barriers", "warp_instructions",
         "divergent_branches")
ASYNCHRONOUS = ("bulk_copies", "bulk_bytes", "wgmma_instructions", "wgmma_shared_bytes")  # shown where there are any


def command(
    kernel: Annotated[str, typer.Argument(help="A rung (12, warp_tile), matmul, a .cu or a .ptx file.")],
    size: Annotated[str | None, typer.Option(help="For a rung, and matmul: square N [256]; for a file whose "
                                            "launch has sizes in variables: N.")] = None,
    shape: Annotated[str | None, typer.Option(help="For a rung: MxNxK; for matmul MxNxK[:layout][*batch].")] = None,
    alpha: Annotated[float, typer.Option(parser=parse.scale, metavar="<float>", help="For a rung, and matmul.")] = 1.0,
    beta: Annotated[float, typer.Option(parser=parse.scale, metavar="<float>", help="For a rung, and matmul.")] = 0.0,
    precision: Annotated[str | None, typer.Option(help="For matmul: as in peakgemm.matmul.  [ieee]")] = None,
    sms: Annotated[int | None, typer.Option(help="For matmul: SMs of the GPU that is played.  [the "
                                                 "architecture's]")] = None,
    entry: Annotated[str | None, typer.Option("--entry", "--kernel", help="For a file: the kernel, where there are "
                                              "several; foo, ns::foo or foo<float, 8> of C++.")] = None,
    grid: Grid = None,
    block: Block = None,
    arg: Arguments = None,
    macro: Macros = None,
    include: Includes = None,
    shared: Shared = None,
    expect: Annotated[str | None, typer.Option(help="For a file: what its result must equal, REF.npy or "
                                              "matmul.")] = None,
    arch: Annotated[str, typer.Option(help="Architecture that the kernel is compiled for.")] = "sm_90",
    source: Annotated[bool, typer.Option(help="Show the annotated source.")] = True,
    max_steps: Annotated[int, typer.Option(min=1, help="Stop after this many instructions.")] = 50_000_000,
    max_seconds: Annotated[float | None, typer.Option(help="For a file: stop after this many seconds.")] = None,
    max_memory: Annotated[int, typer.Option(min=1, help="Bytes that the simulation may take.")] = 4 << 30,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Run a kernel's PTX, or what matmul would run, on the CPU: result, wavefronts, sectors, races, out-of-bounds."""
    architecture(arch)
    records.check_writable(json, *(x for x in (kernel, *(arg or [])) if x.endswith((*OF_KERNELS, ".npy"))))
    limits: dict[str, Any] = {"max_steps": max_steps, "max_memory": max_memory}
    file, call = kernel.endswith(OF_KERNELS), kernel == MATMUL
    for what, taken, options in (
        ("a rung or matmul", not file, {"--shape": shape, "--alpha": alpha != 1, "--beta": beta}),
        ("matmul", call, {"--precision": precision, "--sms": sms is not None}),
        ("a file", file, {"--entry": entry, "--grid": grid, "--block": block, "--arg": arg, "--macro": macro,
                          "--include": include, "--shared": shared, "--expect": expect, "--max-seconds": max_seconds}),
    ):
        if not taken:
            parse.only_for(what, options, kernel)
    details, wrong = dict[str, Any](), ""
    if file:
        report, args, wrong = _file(Path(kernel), entry, grid, block, arg or [], macro or [], include or [], shared,
                                    size, arch, expect, {**limits, "max_seconds": max_seconds})
        _arrays(args)
        main, reports = Path(kernel), [report]
    elif call:
        done, problem = _call(size, shape, alpha, beta, precision or "ieee", sms, arch, limits)
        report, main, reports = done.product, done.choice.kernel.path, done.reports
        others = dict[str, Any]()
        for each in reports:
            if each is not report:
                before = sum(name.split()[0] == each.kernel for name in others)
                others[f"{each.kernel} {before + 1}" if before else each.kernel] = each.to_json()
        details = {"problem": problem, **({"others": others} if others else {})}
    else:
        report, main, details = _rung(kernel, size, shape, alpha, beta, arch, limits)
        reports = [report]
    _counters(reports)
    for each in reports:
        if each.printed:
            out.print(f"\nPrinted by {each.kernel}:\n{each.printed.rstrip()}", soft_wrap=True)
    if source:
        _source(report, main)
    clean = all(each.clean for each in reports)
    if clean and not wrong:
        out.print("\nNo fault found.")
    keep(json, records.record(None, arch, [{**details, "report": report.to_json()}]), "Report written")
    if not clean or wrong:
        said = [text for each in reports for text in each.causes() or [each.stopped] * bool(each.stopped)]
        err.print("\n" + "\n".join([*said, *[wrong] * bool(wrong)]))
        raise typer.Exit(1)


def _rung(text: str, size: str | None, shape: str | None, alpha: float, beta: float, arch: str,
          limits: dict[str, Any]) -> tuple[Report, Path, dict[str, Any]]:
    chosen, wanted = rungs(text), parse.shapes(size, shape, 256)
    if len(chosen) != 1 or len(wanted) != 1:
        raise InvalidValue(f"simulate takes one rung and one shape, not {len(chosen)} and {len(wanted)}")
    m, n, k = wanted[0]
    needed = 8 * (m * k + k * n + m * n)
    parse.room(needed, limits["max_memory"])
    a, b, c = matrices(wanted[0], beta)
    before = c.copy()
    with waiting(f"simulating {chosen[0].label}"):
        report = run_rung(chosen[0], a, b, c, alpha=alpha, beta=beta, arch=arch, **limits)
    row = simulated_row(report, a, b, before, c, alpha, beta)
    out.print(f"{chosen[0].label}, M, N, K = {m}, {n}, {k}: largest error {row['max_error']:.2f} eps |A||B| against "
              f"FP64, {report.seconds:.2f} s simulated, {report.counters.get('lane_instructions', 0):,} "
              "instructions of lanes\n")
    problem = {"number": chosen[0].number, "name": chosen[0].name, "shape": [m, n, k], "alpha": alpha, "beta": beta,
               "max_error": row["max_error"]}
    return report, chosen[0].path, {"problem": problem}


def _call(size: str | None, shape: str | None, alpha: float, beta: float, precision: str, sms: int | None,
              arch: str, limits: dict[str, int]) -> tuple[SimulatedCall, dict[str, Any]]:
    """What `peakgemm.matmul` would run, launch by launch, printed, and what a record says of it."""
    parse.exclusive(size, shape)
    posed = cases(shape or "x".join([size or "256"] * 3))
    if len(posed) != 1:
        raise InvalidValue(f"simulate takes one shape, not {len(posed)}")
    case = posed[0]
    check_precision(precision)
    if sms is not None and sms < 1:
        raise InvalidValue(f"--sms {sms} must be 1 at least")
    # Operands and result in float32, and both of them and three more results in float64.
    needed = 4 * case.batch * (3 * (case.m * case.k + case.k * case.n) + 7 * case.m * case.n)
    parse.room(needed, limits["max_memory"])
    count = sms or architecture(arch).gpu_sms
    with waiting(f"simulating {case.size}"):
        call = simulate_call(case, precision, arch, count, alpha, beta, max_steps=limits["max_steps"])
    choice = call.choice
    out.print(f"{case.size} on {arch} with {count} SMs: {choice.kernel.label}, {choice.config.label()} "
              f"({choice.source})")
    out.print(f"{choice.reason}.")
    rerouted = "" if call.rerouted is None else f", {call.rerouted} half tiles rerouted to FFMAs"
    out.print(f"Largest error {call.max_error:.2f} eps |A||B| against FP64{rerouted}; "
              f"{sum(report.seconds for report in call.reports):.2f} s simulated\n")
    return call, {"name": MATMUL, "shape": [case.m, case.n, case.k], "layout": case.layout, "batch": case.batch,
                  "alpha": alpha, "beta": beta, "precision": precision, "sms": count, "kernel": choice.kernel.name,
                  "config": choice.config.to_json(), "max_error": call.max_error}


def _file(path: Path, entry: str | None, grid: str | None, block: str | None, words: list[str], macros: list[str],
          include: list[Path], shared: int | None, size: str | None, arch: str, expect: str | None,
          limits: dict[str, Any]) -> tuple[Report, list[Any], str]:
    """The report, the arguments after the run, and what is wrong with the result; empty: nothing."""
    if path.suffix == ".ptx":
        parse.only_for("a .cu file", {"--macro": macros, "--include": include}, f"{path}, which is compiled already")
    defined, wanted = parse.macros(macros), reference(expect) if expect else None
    own = own_launch(path, entry, grid, block, words, shared, defined, include, size, max_memory=limits["max_memory"])
    if own.said:
        out.print(own.said, style="dim", soft_wrap=True)
    before = [np.copy(one) for one in own.args] if expect else []
    with waiting(f"simulating {path.name}"):
        report = run(path, entry=own.entry, grid=own.grid, block=own.block, args=own.args, shared_bytes=own.shared,
                     arch=arch, macros=defined, include=include, **limits)
    if not expect or report.stopped:
        return report, own.args, ""
    right, said = compare(wanted, before, own.args)
    if right:
        out.print(said, soft_wrap=True)
    return report, own.args, "" if right else said


def _arrays(args: list[Any]) -> None:
    rows = []
    for number, value in enumerate(args):
        if isinstance(value, np.ndarray):
            with np.errstate(all="ignore"):
                floats = value.astype(np.float64) if value.dtype.kind in "biuf" else np.zeros(0)
                finite = floats[np.isfinite(floats)]
                low, mean, high = (f"{f(finite):.6g}" if finite.size else "-" for f in (np.min, np.mean, np.max))
            rows.append([str(number), str(value.dtype), "x".join(map(str, value.shape)), low, mean, high,
                         str(floats.size - finite.size)])
    table("Arrays after the run", [("argument", "right"), ("dtype", "left"), ("shape", "left"), ("least", "right"),
                                   ("mean", "right"), ("most", "right"), ("inf, nan", "right")], rows)
    out.print()


def _counters(reports: Sequence[Report]) -> None:
    """A column a launch."""
    shown = (*SHORT, *(name for name in ASYNCHRONOUS if any(report.counters.get(name) for report in reports)))
    table("Counters", [("", "left"), *((demangle.shown(report.kernel), "right") for report in reports)],
          [[name.replace("_", " "), *(f"{report.counters.get(name, 0):,}" for report in reports)] for name in shown])


def _source(report: Report, main: Path) -> None:
    out.print()
    file = None
    for line in annotated(report, main):
        if line.file != file:
            file = line.file
            out.print(f"{'executed':>10} {'wavefronts':>11} {'ideal':>10} {'sectors':>11} {'ideal':>10}  {file}",
                      style="bold", soft_wrap=True)
        c = line.counts
        cells = [c.executions, c.wavefronts, c.wavefronts_ideal, c.sectors, c.sectors_ideal] if c else [0] * 5
        shown = " ".join(f"{value or '':>{width}}" for value, width in zip(cells, (10, 11, 10, 11, 10), strict=True))
        costly = c is not None and (c.wavefronts > c.wavefronts_ideal or c.sectors > c.sectors_ideal)
        out.print(f"{shown}  {line.number:4} {line.text}", soft_wrap=True,
                  style="red" if line.faults else "yellow" if costly else None)
        for said in line.faults:
            out.print(f"{'':57}     ^ {said}", soft_wrap=True, style="red")
