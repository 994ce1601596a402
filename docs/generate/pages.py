"""What the project's pages say of the ladder: tables, captions, a page for each rung."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from docs.generate.markdown import bill_table, grid
from peakgemm.kernels.registry import LADDER, Kernel
from peakgemm.runtime.source import header_comment
from peakgemm.tools.bench.records import runs_of

SIZE = 4096
Row = Mapping[str, Any]
Record = Mapping[str, Any]


def rows_at(record: Record, shape: tuple[int, int, int]) -> list[Row]:
    """The rows of one shape."""
    return next(list(run["rungs"]) for run in runs_of(record) if tuple(run["shape"]) == shape)


def by_shape(record: Record, number: int) -> list[tuple[str, Row]]:
    """One rung's row for each shape of a record (the default config where there are several)."""
    return [("x".join(map(str, run["shape"])), next(r for r in run["rungs"] if r["number"] == number))
            for run in runs_of(record) if any(r["number"] == number for r in run["rungs"])]


def measured_rungs(rows: Mapping[int, Row]) -> list[Kernel]:
    """The rungs that a record holds."""
    return [kernel for kernel in LADDER if kernel.number in rows]


def ladder_table(ladder: Record) -> str:
    """docs/ladder.md: one row per rung at 4096, and the other squares; a rung that no record holds says so."""
    sizes = [run["shape"][0] for run in runs_of(ladder)]
    by_size = {n: {r["number"]: r for r in rows_at(ladder, (n, n, n))} for n in sizes}
    shown = measured_rungs(by_size[SIZE])
    rows = [(f"{branch(kernel)}[{kernel.label}](rungs/{kernel.page}.md)", kernel.idea,
             f"{by_size[SIZE][kernel.number]['tflops']:.1f}",
             *(f"{by_size[n][kernel.number]['ratio_to_cublas']:.3f}" for n in sizes)) for kernel in shown]
    rows += [(kernel.label, kernel.idea, "not measured", *("" for _ in sizes)) for kernel in LADDER
             if kernel not in shown]
    speeds = {n: f"{by_size[n][shown[-1].number]['cublas_tflops']:.1f}" for n in sizes}
    rows.append(("cuBLAS FP32, TFLOPS", "", speeds[SIZE], *speeds.values()))
    why = grid(("side branch", "why to look"), [(kernel.label, kernel.aside) for kernel in LADDER if kernel.aside],
               left=(0, 1))
    return grid(("rung", "idea", f"TFLOPS at {SIZE}", f"of cuBLAS at {sizes[0]}", *map(str, sizes[1:])), rows,
                left=(0, 1)) + "\n" + why


def branch(kernel: Kernel) -> str:
    """What stands before the name of a rung that is off the main line."""
    return "↳ " if kernel.aside else ""


def caption(*records: Record) -> str:
    """Where figures come from, in one line for each GPU and each set of versions, with the commands."""
    sources: dict[str, list[str]] = {}
    for record in records:
        gpu, env = record["device"], record["environment"]
        made = f"NVRTC {env.get('cubins', env['nvrtc'])}"
        sources.setdefault(
            f"{gpu['name']}, random normal data, ratios are medians of interleaved pairs against cuBLAS "
            f"{env.get('cublas', '')} in plain FP32, {made}.", []).extend(record["command"].split("; "))
    return "\n".join(f"{source} Command{'s' * (len(commands) > 1)}: {', '.join(f'`{one}`' for one in commands)}.\n"
                     for source, commands in sources.items())


def sweep_table(record: Record) -> str:
    """All tiles, best first."""
    lines = ["| bm | bk | bn | rm | rn | double buffer | registers | spill B | warps/SM | limited by | FFMA "
             "| TFLOPS | of cuBLAS |", "|" + "---:|" * 13]
    for r in runs_of(record)[0]["rungs"]:
        if "refused" in r:
            continue
        c = r["config"]
        buffers = "on" if c["stages"] == 2 else "off"
        lines.append(f"| {c['bm']} | {c['bk']} | {c['bn']} | {c['tm']} | {c['tn']} | {buffers} "
                     f"| {r['registers']} | {r['spill_bytes']} | {r['warps_per_sm']} | {r['limited_by']} "
                     f"| {100 * r['ffma_fraction']:.0f} % | {r['tflops']:.1f} "
                     f"| {r['ratio_to_cublas']:.3f} |")
    return "\n".join(lines) + "\n"


def measured_line(rows: Mapping[int, Row], number: int) -> str:
    """What the last line of a kernel's header must say."""
    r = rows[number]
    source = _source(number)
    before = source if source is not None else max((other for other in rows if other < number), default=None)
    gain = "" if before is None else f", {r['tflops'] / rows[before]['tflops']:.2f} times rung {before:02}"
    return f"// Measured: {r['tflops']:.2f} TFLOPS at 4096 on an H100, {r['ratio_to_cublas']:.3f} of cuBLAS{gain}."


def _source(number: int) -> int | None:
    """The rung whose source a patched rung shares."""
    own = next(kernel for kernel in LADDER if kernel.number == number)
    return next((kernel.number for kernel in LADDER
                 if own.patched and not kernel.patched and kernel.entry == own.entry), None)


def counter_table(counters: list[tuple[str, Row]]) -> list[str]:
    """The profiler's column for each shape, the simulator's beside it where there is one, and why they differ."""
    columns: list[tuple[str, Row]] = []
    for shape, row in counters:
        columns.append((shape, row["ncu"]))
        if "simulator" in row:
            columns.append((f"{shape}, simulated", row["simulator"]))
    lines = ["| counter | " + " | ".join(title for title, _ in columns) + " |", "|---|" + "---:|" * len(columns)]
    for name in columns[0][1]:
        values = [c.get(name) for _, c in columns]
        if name != "kernel" and any(values):
            lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(figure(v) for v in values) + " |")
    reasons = {row["explained"] for _, row in counters if row.get("explained")}
    return [*lines, *(f"\nWhere the columns differ: {reason}." for reason in sorted(reasons))]


def rung_page(kernel: Kernel, rows: Mapping[int, Row], counters: list[tuple[str, Row]],
              all_sizes: list[tuple[str, Row]], bills: list[Row]) -> str:
    """One page per rung: its idea, its facts, its figures, its bills, its counters."""
    r = rows[kernel.number]
    text = header_comment(kernel.header).split("\n", 2)
    parts = re.split(r"^(Idea|Removes|Leaves|Measured): ", text[2].strip(), flags=re.M)[1:]
    lines = [f"# {text[0]}", ""]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        said = " ".join(body.split())
        lines += [f"**{title}.** {said[0].upper()}{said[1:]}", ""]
    lines += [f"Source: `src/peakgemm/kernels/{kernel.file}`. Try: `peakgemm ladder --rungs {kernel.number:02}`.", "",
              *(["Its code is [tuned in SASS](../sass-tuning.md).", ""] if kernel.patched else []), "## Figures"]
    facts = (("block x BK / thread", kernel.default.label()), ("registers a thread", r["registers"]),
             ("bytes spilled", r["spill_bytes"]), ("shared memory, bytes", r["shared_bytes"]),
             ("threads a block", r["threads"]),
             ("blocks per SM", f"{r['blocks_per_sm']}, limited by {r['limited_by']}"),
             ("instructions of the loop", f"{r['loop_instructions']}, {100 * r['ffma_fraction']:.1f} % FFMA"),
             ("bytes asked of global memory, a FLOP", f"{r['bytes_per_flop']:.3f}"))
    lines.append(folded("Resources and main loop, default configuration on sm_90",
                        grid(("", ""), [(name, str(value)) for name, value in facts if value != 0])))
    lines.append(folded("Measured on an H100", grid(
        ("M x N x K", "TFLOPS", "of cuBLAS", "10-90 %", "error / eps", "cuBLAS's"), [
            (shape, f"{row['tflops']:.2f}", f"{row['ratio_to_cublas']:.3f}",
             f"{row['ratio_spread'][0]:.3f}-{row['ratio_spread'][1]:.3f}", f"{row['max_error']:.2f}",
             f"{row['reference_error']:.2f}") for shape, row in all_sizes])))
    if bills:
        lines.append(folded("Where the issue slots go", bill_table(bills) + "\n[How it is counted](../bill.md)."))
    if counters:
        lines.append(folded("Nsight Compute, and the simulator", "\n".join(counter_table(counters))))
    return "\n".join(lines) + "\n"


def folded(title: str, body: str) -> str:
    """Markdown that a reader opens."""
    return (f"\n```{{raw}} html\n<details><summary>{title}</summary>\n```\n\n{body.strip()}\n\n"
            "```{raw} html\n</details>\n```\n")


def figure(value: float | None) -> str:
    """A counter with all its digits; of what is no whole number three."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"
