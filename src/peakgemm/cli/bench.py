"""``peakgemm bench``: the library's choices against cuBLAS and others, over suites of shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..calls.request import PRECISIONS
from ..errors import CompileFailed, InvalidValue, MissingComponent
from ..kernels.library import EMULATED, KERNELS, kernel_named
from ..runtime import device
from ..runtime.device import Gpu
from ..tools.bench import bench, contenders, records
from ..tools.bench import columns as c
from ..tools.bench.contenders import CONTENDERS, Contender
from ..tools.bench.peers import Peer, TorchPeer
from ..tools.bench.roofline import copy_gbs
from ..tools.bench.suites import NAMES, groups
from ..tools.bench.summary import summaries
from ..tools.bench.timer import Timer
from ..tools.bench.variants import IEEE, Variant, named
from ..tools.report.figures import WIDTH, ratio_chart
from . import parse
from .console import err, out, progress, show
from .measuring import chosen_for, keep, measuring, why_not

Row = Mapping[str, Any]
LINALG = (c.CASE, c.Column("precision", "precision"), c.Column("ms", "ms", 3), c.Column("torch's", "baseline_ms", 3),
          c.Column("TFLOPS", "tflops", 1), c.Column("ratio", "ratio", 2),
          c.Column("of product", "share_of_product", 2), c.Column("error", "max_error", 2),
          c.Column("torch's", "reference_error", 2))


def command(
    suite: Annotated[str | None, typer.Option(
        help=f"all, or some of {', '.join(NAMES)}; or linalg alone.  [square]")] = None,
    shape: Annotated[str | None, typer.Option(help="MxNxK[:layout][*batch], or several.")] = None,
    precision: Annotated[list[str] | None, typer.Option(
        help=f"{', '.join(PRECISIONS)}: one or several, a row each.  [ieee]")] = None,
    prepared: Annotated[bool, typer.Option("--prepared", help="A second row each with B split beforehand.")] = False,
    peers: Annotated[str, typer.Option(help=f"Beside cublas: {', '.join(CONTENDERS)}.")] = "cublas",
    seconds: Annotated[float, typer.Option(min=0.01, max=60, help="Of interleaved pairs, a row and peer.")] = 0.6,
    arch: Annotated[str | None, typer.Option(help="Choose for sm_NN.  [the GPU's, else sm_90]")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file, row by row.")] = None,
    operation: Annotated[list[str] | None, typer.Option(help="Of the suite linalg: one or several.  [all]")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a plot of the ratios to this file.")] = None,
) -> None:
    """Time what matmul runs against cuBLAS FP32, and others, over suites of shapes."""
    if suite == "linalg":
        given = {"--shape": shape, "--precision": precision, "--prepared": prepared, "--svg": svg,
                 "--peers": peers != "cublas"}
        parse.only_for("products", given, "suite linalg")
        _linalg(operation, seconds, arch, json)
        return
    parse.only_for("the suite linalg", {"--operation": operation}, "products")
    chosen = groups(suite or (None if shape else "square"), shape)
    variants = named(precision or [IEEE.precision], prepared)
    others = contenders.names(peers)
    gpu = device.find()
    target = parse.target(arch, gpu)
    records.check_writable(json, svg)
    records.check_writable(svg)
    measured_on, peer = measuring(gpu, target)
    if svg and peer is None:
        raise InvalidValue("--svg plots measurements, and nothing is timed here; leave it out")
    if peer is None:  # what runs is the same
        variants = [variant for variant in variants if not variant.prepared]
    versions = peer.versions() if peer else {}
    rivals = _rivals(others, peer) if peer else []
    for rival in rivals:
        versions |= rival.versions
    sms, name = chosen_for(gpu, target)
    rows: list[dict[str, Any]] = []
    more: dict[str, Any] = {}

    def record(on: Gpu | None) -> dict[str, Any]:
        run = {"rungs": rows, "suites": summaries(rows), **more}
        return records.record(on, target, [run], versions=versions)

    with progress("measuring", sum(map(len, chosen.values())) * len(variants)) as done:
        measurer = None
        if measured_on is not None and peer is not None:
            timer = Timer(peer, seconds)
            more["copy_gbs"] = copy_gbs(peer, timer)
            measurer = bench.Bench(measured_on, peer, timer, rivals, more["copy_gbs"], seconds)
        for row in bench.rows(chosen, variants, target, sms, name, measurer, done):
            rows.append(row)
            if json is not None and measurer is not None and records.replaceable(json):
                records.write(json, record(measured_on))
    for group in chosen:
        for variant in variants:
            _show(variant.name(group),
                  [row for row in rows if row["suite"] == group and Variant.of(row) == variant],
                  [rival.name for rival in rivals])
    if peer is None:
        out.print(f"Not timed: {why_not(gpu, target)}.")
    else:
        _sum_up(summaries(rows), more["copy_gbs"])
    keep(json, record(measured_on if peer else None))
    if svg is not None:
        records.write_text(svg, ratio_chart(rows, f"{name}, FP32, random data", WIDTH).text(alone=True))
        out.print(f"Plot written to {svg}")
    _fail([f"{Variant.of(row).name(row['name'])}: {row['error']}" for row in rows if "error" in row])


def _linalg(operations: list[str] | None, seconds: float, arch: str | None, json: Path | None) -> None:
    """Linear algebra beside torch's cuBLAS and cuSOLVER."""
    gpu = device.find()
    target = parse.target(arch, gpu)
    records.check_writable(json)
    measured_on, peer = measuring(gpu, target)
    if measured_on is None or not isinstance(peer, TorchPeer):
        why = "torch is missing; run: pip install torch" if peer else why_not(gpu, target)
        out.print(f"Not timed: the suite linalg runs beside torch, and {why}", soft_wrap=True)
        return
    from ..tools.bench import linalg

    rows: list[dict[str, Any]] = []
    for name in operations or ():
        if name not in linalg.OPERATIONS:
            raise InvalidValue(f"--operation {name} is unknown; pass one of {', '.join(linalg.OPERATIONS)}")
    chosen, timer = linalg.cases(operations or linalg.OPERATIONS), Timer(peer, seconds)
    with progress("measuring", len(chosen)) as done:
        for row in linalg.rows(chosen, measured_on, timer, done):
            rows.append(row)
            record = records.record(measured_on, target, [{"rungs": rows}], versions=peer.versions())
            if json is not None and records.replaceable(json):
                records.write(json, record)
    show("Linear algebra, random data", LINALG, [row for row in rows if "ms" in row],
         "ratio: torch's time over ours. of product: our time over our full product's.\n"
         "error: the largest residual over the norms of its row and column, in eps, in FP64.")
    keep(json, record)
    _fail([f"{row['name']}, {row['precision']}: {row['error']}" for row in rows if "error" in row])


def _fail(failed: Sequence[str]) -> None:
    """Exit with 1 where something failed."""
    for line in failed:
        err.print(f"Failed: {line}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _rivals(names: Sequence[str], peer: Peer) -> list[Contender]:
    """Those of the contenders that are installed, or can be built; the others are told and done without."""
    rivals = []
    for name in names:
        try:
            rivals.append(CONTENDERS[name](peer))
        except (MissingComponent, CompileFailed) as error:
            err.print(f"Left out: {name}: {error}")
    return rivals


def _show(title: str, rows: Sequence[Row], rivals: Sequence[str]) -> None:
    measured = [row for row in rows if "mode" in row]
    if measured:
        show(f"{title}: measured, random data", (
            c.CASE, c.TFLOPS, c.CUBLAS, c.RATIO, c.SPREAD, c.TIMED, c.Column("GB/s", "gbs", 0),
            c.Column("copy, %", c.percent("share_of_copy"), 0), c.Column("pJ/FLOP", "pj_per_flop", 1),
            c.Column("cuBLAS", "cublas_pj_per_flop", 1)), measured,
            "GB/s where the memory bounds the product, and the share of what a copy reaches.")
        out.print()
    if measured and rivals:
        def ratio(name: str) -> c.Column:
            return c.Column(name, lambda row: row["peers"][name].get("ratio_to_cublas"), 3)

        def errors(row: Row) -> str:
            return "; ".join(f"{name}: {row['peers'][name]['error']}" for name in rivals
                             if "error" in row["peers"][name])[:30]

        show(f"{title}: ratio of time to cuBLAS, each in the same run", (
            c.CASE, c.Column("ours", "ratio_to_cublas", 3), *map(ratio, rivals), c.Column("error", errors)), measured)
        out.print()
    show(f"{title}: what ran" if measured else f"{title}: what runs", (
        c.CASE, c.Column("kernel", "kernel"), c.Column("configuration", _configuration),
        c.Column("path" if any("path" in row for row in rows) else "chosen by", _path),
        c.Column("error", lambda row: "failed" if "error" in row else row.get("max_error"), 2)), rows,
        "error: largest |C - AB| / (eps |A||B|) against FP64." if measured else "")
    out.print()


def _configuration(row: Row) -> str:
    return kernel_named(row["kernel"], (*KERNELS, *EMULATED)).read(row["config"]).label()


def _path(row: Row) -> str:
    """How the device went: how much was rerouted, the kernel's own name being in the table; or who chose the kernel."""
    path = str(row.get("path", row["source"]))
    return path.partition(", ")[2] or path


def _sum_up(entries: Sequence[Row], copy: float) -> None:
    def geomean(name: str) -> c.Column:
        return c.Column(name, lambda entry: entry["peers"].get(name, {}).get("geomean"), 3)

    peers = dict.fromkeys(name for entry in entries for name in entry["peers"])
    for variant in dict.fromkeys(map(Variant.of, entries)):
        show(variant.name("Ratio of time to cuBLAS FP32"), (
            c.Column("suite", "suite"), c.Column("rows", "rows", 0), c.Column("geomean", "geomean", 3),
            c.Column("wins, %", c.percent("wins"), 0), c.Column("worst", "worst", 3),
            c.Column("", lambda entry: entry["worst_name"] or ""), *map(geomean, peers)),
            [entry for entry in entries if Variant.of(entry) == variant])
    out.print("Geometric means; wins: rows above 1. "
              f"A copy on this device moves {copy:.0f} GB/s, read and written.", style="dim")
