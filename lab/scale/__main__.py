"""Host arrays and several GPUs: what each product should take, and takes.

    python -m lab.scale --gpus 2 --json results/h200-x2/scale.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lab.runner import run
from lab.scale import scale
from lab.scale.predict import HOST_SIZES, Case
from peakgemm.cli.console import err, number, out, progress, table
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.device import Gpu
from peakgemm.selection.machine import machine
from peakgemm.tools.bench import records


def command(
    gpus: Annotated[int | None, typer.Option(min=1, help="For how many GPUs.  [those there, else 2]")] = None,
    links: Annotated[Path | None, typer.Option(help="The links' speeds, from this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller sizes.")] = False,
    precision: Annotated[list[str] | None, typer.Option(help="One or several.  [ieee, emulated]")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file, part by part.")] = None,
) -> None:
    """Predict host arrays and products on several GPUs, measure where the GPUs are there, and show both."""
    precisions = precision or ["ieee", "emulated"]
    here = device.count()
    count = gpus or max(here, 1) if here else gpus or 2
    records.check_writable(json, links)
    gpu = device.find(0) if here else None
    like = gpu or _model()
    link, bus = scale.links(like.name, links)
    sizes = [size for size in HOST_SIZES if size <= (8192 if quick else 30000)]
    forecast = scale.predictions(like, count, precisions, link, bus, sizes, quick)
    record: dict[str, Any] = {"gpus": count, "quick": quick, "prediction": forecast}
    # What is predicted is in the file before anything is measured.
    _write(json, gpu, like.arch, record)
    if gpu is not None and count <= here:
        with progress("measuring", 2) as done:
            alone = count == 1
            limit = scale.HOST_SECONDS if alone else scale.HOST_BESIDE_SECONDS
            record["host"] = scale.measure_host(count, precisions, sizes if alone else sizes[-1:], limit, alone)
            _write(json, gpu, like.arch, record)
            done("host arrays")
            if count > 1:
                record["ranks"] = scale.measure_ranks(count, precisions, quick, scale.RANKS_SECONDS)
                if not quick:
                    record["lost_rank"] = scale.measure_lost(count)
                _write(json, gpu, like.arch, record)
            done("ranks")
        ranks = record.get("ranks", {})
        by_times = ranks.get("prediction")
        probed = {"products": by_times["products"] if by_times else [], "host": scale.probed(record["host"], bus)}
        record["off"] = {"cost_models": scale.compared(forecast, ranks, record["host"]),
                         "measured_times": scale.compared(probed, ranks, record["host"])}
    _write(json, gpu, like.arch, record, finished=True)
    _show(record, like.name, gpu is not None, here)
    if json is not None:
        out.print(f"Record written to {json}", markup=False)
    errors = [f"{part}: {line}" for part in ("host", "ranks") for line in _errors(record.get(part, {}))]
    errors += [f"lost rank, {each['way']}: {each['error']}" for each in record.get("lost_rank", ()) if "error" in each]
    for line in errors:
        err.print(f"Failed: {line}", markup=False, soft_wrap=True)
    if errors:
        raise typer.Exit(1)


def _model() -> Gpu:
    """The GPU that is meant where there is none: an H100."""
    found = machine("sm_90", architecture("sm_90").gpu_sms, scale.DEFAULT)
    return replace(_H100, sm_count=found.sms)


_LEVELS = " .:-=+*#"

_H100 = Gpu(0, scale.DEFAULT, "sm_90", 132, 1980, 3352.3, 50 << 20, "13.0")


def _errors(part: Mapping[str, Any]) -> list[str]:
    return [*part.get("errors", ()), *(f"{name}: {each['error']}" for name, each in part.get("parts", {}).items()
                                       if "error" in each)]


def _write(path: Path | None, gpu: Gpu | None, arch: str, record: dict[str, Any], finished: bool = False) -> None:
    if path is not None and (finished or records.replaceable(path)):
        records.write(path, records.record(gpu, arch, [{"scale": record}]))


def _show(record: Mapping[str, Any], name: str, measured: bool, here: int) -> None:
    count, forecast = record["gpus"], record["prediction"]
    ranks = record.get("ranks", {})
    times = {_key(row): row for row in ranks.get("products", ())}
    by_times = {_key(row): row for row in ranks.get("prediction", {}).get("products", ())}
    rows = []
    for row in forecast["products"]:
        better, seen = by_times.get(_key(row), row), times.get(_key(row), {})
        call = "gather" if row["call"] == "all_gather_matmul" else "scatter"
        rows.append([call, row["scaling"], f"{row['m']}x{row['n']}x{row['k']}", row["precision"], better["chosen"],
                     number(better["predicted_ms"], 3), number(seen.get("ms"), 3),
                     f"{100 * better['predicted_efficiency']:.0f} %",
                     "-" if "efficiency" not in seen else f"{100 * seen['efficiency']:.0f} %"])
    if rows:
        table(f"{count} x {name}: predicted, and measured", [
            ("", "left"), ("scaling", "left"), ("each GPU's", "left"), ("precision", "left"), ("way", "left"),
            ("ms", "right"), ("seen", "right"), ("share", "right"), ("seen", "right")],
            rows, "gather: all_gather_matmul; scatter: matmul_reduce_scatter. share: one GPU's time for its part of "
            "the work, over the time with the collective; seen: measured.")
        for precision, rows_from in (ranks.get("prediction") or forecast)["overlap_pays_from_rows"].items():
            out.print(f"Overlap pays from M = {rows_from} on, {precision}, N = K = 8192." if rows_from else
                      f"Overlap pays at no M of the suite, {precision}, N = K = 8192.")
        out.print()
    seen_host = {(row["size"], row["precision"], row["gpus"]): row for row in record.get("host", {}).get("rows", ())}
    lines = []
    for row in forecast["host"]:
        found = seen_host.get((row["size"], row["precision"], row["gpus"]), {})
        lines.append([str(row["size"]), row["precision"], str(row["gpus"]), number(row["predicted_ms"], 2),
                      number(found.get("ms"), 2), number(found.get("in_core_ms"), 2), number(found.get("torch_ms"), 2),
                      number(found.get("error"), 2)])
    table("Arrays in the host's memory, ms", [
        ("M = N = K", "right"), ("precision", "left"), ("GPUs", "right"), ("predicted", "right"), ("ours", "right"),
        ("on the GPU", "right"), ("torch", "right"), ("error", "right")], lines,
        "on the GPU: without copies. torch: from_numpy(...).cuda(), @, .cpu().")
    for row in record.get("host", {}).get("rows", ()):
        _show_timeline(row)
    if "off" in record:
        for what, each in record["off"].items():
            for part, values in each.items():
                out.print(f"Prediction by {what.replace('_', ' ')}, {part}: off by {100 * values['median']:.0f} % "
                          f"(median), {100 * values['p90']:.0f} % (90th percentile).")
    if not measured:
        out.print(f"Not timed: {device.reason_without_gpu()}.", markup=False)
    elif count > here:
        out.print(f"Not timed: {here} of {count} GPUs are here.", markup=False)


def _show_timeline(row: Mapping[str, Any]) -> None:
    """Where the time of a product of host arrays went, on each GPU."""
    lines = []
    for account in row.get("timeline", ()):
        gpu, idle = str(account["device"]), account.get("idle", {})
        for kind, each in account["kinds"].items():
            lines.append([gpu, kind, str(each["count"]), number(each["busy_ms"], 1), number(each["sum_ms"], 1),
                          number(each["gbs"], 1) if each["bytes"] else "-", _bar(each["shares"])])
        for when, ms in idle.items():
            lines.append([gpu, f"no product: {when.removesuffix('_ms')}", "", number(ms, 1), "", "-", ""])
    if lines:
        table(f"{row['size']} {row['precision']} on {row['gpus']}: {row['timeline'][0]['ms']:.0f} ms", [
            ("GPU", "right"), ("", "left"), ("count", "right"), ("ms", "right"), ("sum", "right"), ("GB/s", "right"),
            ("when", "left")], lines, "ms: while at least one was under way; sum: of all threads.")


def _bar(shares: Sequence[float]) -> str:
    """How busy each fortieth of the time was, two of them a character."""
    pairs = [(first + second) / 2 for first, second in zip(shares[::2], shares[1::2], strict=True)]
    return "".join(_LEVELS[min(len(_LEVELS) - 1, int(share * len(_LEVELS)))] for share in pairs)


def _key(row: Mapping[str, Any]) -> Case:
    return Case(**{field: row[field] for field in Case._fields})


if __name__ == "__main__":
    run(command)
