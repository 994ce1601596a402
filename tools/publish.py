"""Everything that a page says in figures, generated from results/<gpu>/*.json.

    python tools/publish.py            write the tables of the README and of docs/, and plots
    python tools/publish.py --check    say what is out of date and exit 1

No source is edited. A rung's header ends with its measured figures; where they are not the record's, the line that
belongs there is printed, and the exit status is 1. A plot ends with a digest of the records that it shows: it is drawn
again where they have changed, not where another matplotlib would draw it differently. Rungs that the records do not
hold yet are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import publish_library as library

from peakgemm.accuracy import plot as accuracy_plot
from peakgemm.bench import plot as bench_plot
from peakgemm.bench.records import runs_of
from peakgemm.bench.variants import Variant
from peakgemm.inspect.header import header_comment
from peakgemm.kernels.registry import LADDER, Kernel

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "h100"
SIZE = 4096
Row = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    """A record of results/h100."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def load_any(*names: str) -> list[dict[str, Any]]:
    """Those of the records that are there."""
    return [load(name) for name in names if (RESULTS / name).exists()]


def rows_at(record: dict[str, Any], shape: tuple[int, int, int]) -> list[Row]:
    """The rows of one shape."""
    return next(list(run["rungs"]) for run in runs_of(record) if tuple(run["shape"]) == shape)


def by_shape(record: dict[str, Any], number: int) -> list[tuple[str, Row]]:
    """One rung's row for each shape of a record (the default config where there are several)."""
    return [("x".join(map(str, run["shape"])), next(r for r in run["rungs"] if r["number"] == number))
            for run in runs_of(record) if any(r["number"] == number for r in run["rungs"])]


def measured_rungs(rows: dict[int, Row]) -> list[Kernel]:
    """The rungs that a record holds."""
    return [kernel for kernel in LADDER if kernel.number in rows]


def block(text: str, name: str, body: str) -> str:
    """``text`` with what lies between the two markers of ``name`` replaced."""
    pattern = re.compile(rf"(<!-- {name}(?::begin)? -->\n).*?(<!-- (?:{name}:end|/{name}) -->)", re.S)
    if not pattern.search(text):
        raise SystemExit(f"marker {name} is missing")
    return pattern.sub(lambda m: m[1] + body + m[2], text)


def ladder_table(ladder: dict[str, Any]) -> str:
    """docs/ladder.md: one row per rung at 4096, and the other squares."""
    sizes = [run["shape"][0] for run in runs_of(ladder)]
    by_size = {n: {r["number"]: r for r in rows_at(ladder, (n, n, n))} for n in sizes}
    lines = ["| rung | idea | registers | blocks/SM | FFMA in loop | TFLOPS at 4096 | "
             + " | ".join(f"of cuBLAS, {n}" for n in sizes) + " |",
             "|---|---|---:|---:|---:|---:|" + "---:|" * len(sizes)]
    shown = measured_rungs(by_size[SIZE])
    for kernel in shown:
        r = by_size[SIZE][kernel.number]
        lines.append(f"| [{kernel.label}](rungs/{kernel.page}.md) | {kernel.idea} | {r['registers']} "
                     f"| {r['blocks_per_sm']} | {100 * r['ffma_fraction']:.0f} % | {r['tflops']:.1f} | "
                     + " | ".join(f"{by_size[n][kernel.number]['ratio_to_cublas']:.3f}" for n in sizes) + " |")
    base = " | ".join(f"{by_size[n][shown[-1].number]['cublas_tflops']:.1f}" for n in sizes)
    lines.append(f"| cuBLAS FP32, TFLOPS | | | | | {by_size[SIZE][shown[-1].number]['cublas_tflops']:.1f} | {base} |")
    return "\n".join(lines) + "\n"


def caption(*records: dict[str, Any]) -> str:
    """Where figures come from, in one line for each GPU and each set of versions, with the commands."""
    sources: dict[str, list[str]] = {}
    for record in records:
        gpu, env = record["device"], record["environment"]
        sources.setdefault(
            f"{gpu['name']}, random normal data, ratios are medians of interleaved pairs against cuBLAS "
            f"{env.get('cublas', '')} in plain FP32, NVRTC {env['nvrtc']}.", []).extend(record["command"].split("; "))
    return "\n".join(f"{source} Command{'s' * (len(commands) > 1)}: {', '.join(f'`{one}`' for one in commands)}.\n"
                     for source, commands in sources.items())


def sweep_table(record: dict[str, Any]) -> str:
    """All tiles, best first."""
    lines = ["| bm | bk | bn | rm | rn | double buffer | registers | spill B | warps/SM | limited by | FFMA | banks "
             "| TFLOPS | of cuBLAS |", "|" + "---:|" * 14]
    for r in runs_of(record)[0]["rungs"]:
        if "refused" in r:
            continue
        c = r["config"]
        buffers = "on" if c["stages"] == 2 else "off"
        lines.append(f"| {c['bm']} | {c['bk']} | {c['bn']} | {c['tm']} | {c['tn']} | {buffers} "
                     f"| {r['registers']} | {r['spill_bytes']} | {r['warps_per_sm']} | {r['limited_by']} "
                     f"| {100 * r['ffma_fraction']:.0f} % | {100 * r['bank_ceiling']:.0f} % | {r['tflops']:.1f} "
                     f"| {r['ratio_to_cublas']:.3f} |")
    return "\n".join(lines) + "\n"


def measured_line(rows: dict[int, Row], number: int) -> str:
    """What the last line of a kernel's header must say."""
    r = rows[number]
    source = next((k.number for k in LADDER for own in LADDER if own.number == number and own.patched
                   and not k.patched and k.entry == own.entry), None)
    before = source if source is not None else max((other for other in rows if other < number), default=None)
    gain = "" if before is None else f", {r['tflops'] / rows[before]['tflops']:.2f} times rung {before:02}"
    return f"// Measured: {r['tflops']:.2f} TFLOPS at 4096 on an H100, {r['ratio_to_cublas']:.3f} of cuBLAS{gain}."


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
        if name != "kernel" and any(v is not None for v in values):
            lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(_figure(v) for v in values) + " |")
    reasons = {row["explained"] for _, row in counters if row.get("explained")}
    return [*lines, *(f"\nWhere the columns differ: {reason}." for reason in sorted(reasons))]


def rung_page(kernel: Kernel, rows: dict[int, Row], counters: list[tuple[str, Row]],
              all_sizes: list[tuple[str, Row]]) -> str:
    """One page per rung: its idea, its facts, its figures, its counters."""
    r = rows[kernel.number]
    text = header_comment(kernel.header).split("\n", 2)
    parts = re.split(r"^(Idea|Removes|Leaves|Measured): ", text[2].strip(), flags=re.M)[1:]
    lines = [f"# {text[0]}", ""]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        said = " ".join(body.split())
        lines += [f"**{title}.** {said[0].upper()}{said[1:]}", ""]
    lines += [
             f"Source: `src/peakgemm/kernels/{kernel.file}`. Try: `peakgemm ladder --rungs {kernel.number:02} "
             f"--explain {kernel.number:02}`.", "",
             *(["Its code is [tuned in SASS](../sass-tuning.md).", ""] if kernel.patched else []),
             "## Facts (default configuration, sm_90)", "",
             "| block x BK / thread | registers | spills | shared bytes | threads | blocks/SM | limited by "
             "| loop instructions | FFMA | bank ceiling | bytes/FLOP |", "|---|" + "---:|" * 10,
             f"| {kernel.default.label()} | {r['registers']} | {r['spill_bytes']} | {r['shared_bytes']} "
             f"| {r['threads']} | {r['blocks_per_sm']} | {r['limited_by']} | {r['loop_instructions']} "
             f"| {100 * r['ffma_fraction']:.1f} % | {100 * r['bank_ceiling']:.1f} % | {r['bytes_per_flop']:.3f} |", "",
             "## Measured on an H100", "", "| M x N x K | TFLOPS | of cuBLAS | 10-90 % | error / eps | cuBLAS's |",
             "|---|---:|---:|---|---:|---:|"]
    lines += [f"| {shape} | {row['tflops']:.2f} | {row['ratio_to_cublas']:.3f} "
              f"| {row['ratio_spread'][0]:.3f}-{row['ratio_spread'][1]:.3f} | {row['max_error']:.2f} "
              f"| {row['reference_error']:.2f} |" for shape, row in all_sizes]
    if counters:
        lines += ["", "## Nsight Compute, and the simulator", "", *counter_table(counters)]
    return "\n".join(lines) + "\n"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def bench_block(records: list[dict[str, Any]]) -> str:
    """docs/bench.md: every figure of the library against cuBLAS, and others' beside it."""
    plots = [f"![Ratio of time to cuBLAS, {path.stem.removeprefix('bench')[1:] or 'IEEE'}]({path.name})\n"
             for path, _, _ in plots_of() if path.stem.startswith("bench")]
    others = library.others_table(records)
    return "\n".join([library.suite_table(records), library.square_table(records), *([others] if others else []),
                      caption(*records), *plots])


def blocks() -> Iterator[tuple[str, str, str]]:
    """(page, marker, text) of the library's figures; a record that is not there yet leaves no figure."""
    records = load_any("bench-ieee.json", "bench-emulated.json", "bench-schemes.json")
    both = load_any("bench-ieee.json", "bench-emulated.json")
    yield "README.md", "library", library.overview(both) + "\n" + caption(*both)
    yield "docs/bench.md", "bench", bench_block(records)
    yield "docs/bench.md", "workload", "\n".join(
        library.workload_table(record) + f"\n{record['device']['name']}. Command: `{record['command']}`.\n"
        for record in load_any("workload.json"))
    yield "docs/bench.md", "h200", "\n".join(
        "\n".join([library.suite_table([record]), library.square_table([record]), caption(record)])
        for record in load_any("../h200/bench-ieee.json"))
    for record in load_any("../sm_90/library-counters.json"):
        yield "docs/simulator.md", "counters", library.counters_table(record) + f"\nCommand: `{record['command']}`.\n"
    for record in load_any("registers.json"):
        yield "docs/register-file.md", "registers", library.registers_table(record) + (
            f"\n{record['device']['name']}, NVRTC {record['environment']['nvrtc']}. Command: `{record['command']}`.\n")
    accuracy = "\n".join(
        library.accuracy_table(record)
        + "\nLargest / mean componentwise error, in eps |A||B| against FP64, at the largest size. "
        + f"{record['device']['name']}, seed {record['seed']}. Command: `{record['command']}`.\n"
        + "\n![Error against K](accuracy.svg)\n" for record in load_any("accuracy.json"))
    for page in ("docs/accuracy.md", "docs/emulation.md"):
        if accuracy or (ROOT / page).exists():
            yield page, "accuracy", accuracy


def outputs() -> Iterator[tuple[Path, str]]:
    """Every generated text file with its content."""
    ladder, k1024, sweep, counters = (load(n) for n in ("ladder.json", "ladder-k1024.json", "sweep.json",
                                                         "counters.json"))
    rows = {r["number"]: r for r in rows_at(ladder, (SIZE, SIZE, SIZE))}
    for kernel in measured_rungs(rows):
        counted = by_shape(counters, kernel.number)
        sizes = [*by_shape(ladder, kernel.number), *by_shape(k1024, kernel.number)]
        yield ROOT / "docs" / "rungs" / f"{kernel.page}.md", rung_page(kernel, rows, counted, sizes)
    pages: dict[str, str] = {}
    for page, name, body in (("docs/ladder.md", "ladder", ladder_table(ladder) + "\n" + caption(ladder)),
                             ("docs/sweep.md", "sweep", sweep_table(sweep) + "\n" + caption(sweep)), *blocks()):
        pages[page] = block(pages.get(page) or (ROOT / page).read_text(encoding="utf-8"), name, body)
    for page, text in pages.items():
        yield ROOT / page, text


def stale_headers() -> list[tuple[Kernel, str]]:
    """Rungs whose header does not say what the record holds, with the line that it lacks."""
    rows = {r["number"]: r for r in rows_at(load("ladder.json"), (SIZE, SIZE, SIZE))}
    wanted = [(kernel, measured_line(rows, kernel.number)) for kernel in measured_rungs(rows)]
    return [(kernel, line) for kernel, line in wanted
            if line not in kernel.header.read_text(encoding="utf-8").splitlines()]


def plots_of() -> Iterator[tuple[Path, tuple[str, ...], Callable[[], str]]]:
    """Every plot: its file, the records that it shows, and what draws it."""
    docs = ROOT / "docs"
    yield docs / "ladder.svg", ("ladder.json",), ladder_plot
    yield docs / "ladder-sizes.svg", ("ladder-k1024.json",), sizes_plot
    for name, precision in (("bench", "ieee"), ("bench-emulated", "emulated")):
        record = f"bench-{precision}.json"
        if (RESULTS / record).exists():
            yield docs / f"{name}.svg", (record,), partial(bench_svg, record, precision)
    if (RESULTS / "accuracy.json").exists():
        yield docs / "accuracy.svg", ("accuracy.json",), accuracy_svg


def stamp(records: tuple[str, ...]) -> str:
    """The last line of a plot: what it shows."""
    digest = hashlib.sha256(b"".join((RESULTS / name).read_bytes() for name in records)).hexdigest()
    return f"<!-- {', '.join(records)}: {digest} -->\n"


def stale_plots() -> list[tuple[Path, str, Callable[[], str]]]:
    """Plots that do not end with their records' stamp."""
    found = []
    for path, records, draw in plots_of():
        mark = stamp(records)
        if not path.exists() or not path.read_text(encoding="utf-8").endswith(mark):
            found.append((path, mark, draw))
    return found


def bench_svg(name: str, precision: str) -> str:
    """Ratios to cuBLAS of one precision, operands split in the time measured."""
    record = load(name)
    rows = [row for row in record["rungs"] if Variant.of(row) == Variant(precision)]
    return bench_plot.svg(rows, f"{record['device']['name']}, {precision}, random data")


def accuracy_svg() -> str:
    """Error against K of all contenders."""
    record = load("accuracy.json")
    return accuracy_plot.svg(library.accuracy_rows(record), f"{record['device']['name']}: error against FP64")


def ladder_plot() -> str:
    """The rungs at 4096."""
    from matplotlib import pyplot

    ladder = load("ladder.json")
    rows = rows_at(ladder, (SIZE, SIZE, SIZE))
    cublas, peak = rows[-1]["cublas_tflops"], _peak(ladder)
    figure, axes = pyplot.subplots(figsize=(9, 5))
    names = [f"{r['number']:02} {r['name'].replace('_', ' ')}" for r in rows]
    bars = axes.barh(names, [r["tflops"] for r in rows], color="#4878a8")
    inside = [f"{r['tflops']:.1f}" if r["tflops"] > peak / 8 else "" for r in rows]
    axes.bar_label(bars, inside, padding=-30, color="white")
    outside = ["" if text else f"{r['tflops']:.1f}" for r, text in zip(rows, inside, strict=True)]
    axes.bar_label(bars, outside, padding=3)
    axes.axvline(cublas, color="#c44e52", label=f"cuBLAS FP32, {cublas:.1f}")
    axes.axvline(peak, color="#555555", linestyle="--", label=f"FP32 peak, {peak:.1f}")
    axes.invert_yaxis()
    axes.set(xlabel="TFLOPS", title=f"M = N = K = {SIZE}, {ladder['device']['name']}")
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.95))
    return _svg(figure)


def sizes_plot() -> str:
    """The best rungs over M = N with K = 1024."""
    from matplotlib import pyplot

    k1024 = load("ladder-k1024.json")
    figure, axes = pyplot.subplots(figsize=(9, 5))
    runs = runs_of(k1024)
    sizes = [run["shape"][0] for run in runs]
    for number in (1, 6, 9, 10, 11, 12, 13, 14):
        found = [next(r for r in run["rungs"] if r["number"] == number) for run in runs]
        axes.plot(sizes, [r["tflops"] for r in found], marker="o", markersize=3,
                  label=f"{number:02} {found[0]['name'].replace('_', ' ')}")
    cublas = [run["rungs"][-1]["cublas_tflops"] for run in runs]
    axes.plot(sizes, cublas, color="black", linewidth=2, label="cuBLAS FP32")
    axes.set(xlabel="M = N", ylabel="TFLOPS", title=f"K = 1024, {k1024['device']['name']}", ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return _svg(figure)


def _peak(record: dict[str, Any]) -> float:
    gpu = record["device"]
    return float(gpu["sm_count"] * 128 * 2 * gpu["clock_mhz"] * 1e6 / 1e12)


def _svg(figure: Any) -> str:
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    headers = [f"{kernel.file} must say: {line}" for kernel, line in stale_headers()]
    stale = [(path, text) for path, text in outputs()
             if not path.exists() or path.read_text(encoding="utf-8") != text]
    if args.check:
        found = [str(path.relative_to(ROOT)) for path in [*(path for path, _ in stale),
                                                          *(path for path, _, _ in stale_plots())]]
        if headers or found:
            sys.exit("out of date; run: make publish\n" + "\n".join([*found, *headers]))
        return
    if headers:  # a rung's page quotes its header
        sys.exit("\n".join(headers))
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
    redraw()


def redraw() -> None:
    """Draw the plots whose records have changed."""
    stale = stale_plots()
    if not stale:
        return
    import matplotlib

    matplotlib.use("svg")
    with matplotlib.rc_context({"svg.hashsalt": "peakgemm", "svg.fonttype": "none", "font.size": 10}):
        for path, mark, draw in stale:
            path.write_text(draw() + mark, encoding="utf-8")


if __name__ == "__main__":
    main()
