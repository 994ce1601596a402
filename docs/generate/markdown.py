"""What pages say of the library in figures, in Markdown: tables of bench, accuracy and workload records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lab.bill import bill
from peakgemm.tools.accuracy.cases import rows_of as accuracy_rows
from peakgemm.tools.accuracy.precisions import precisions
from peakgemm.tools.bench.records import runs_of
from peakgemm.tools.bench.variants import IEEE, Variant

Row = Mapping[str, Any]
EMULATED = Variant("emulated")
BOTH = (IEEE, EMULATED)

# By M = N = K: FP32 products by GEMMul8 in TFLOPS, and cuBLAS SGEMM beside it on the same GPU, as published.
GEMMUL8 = {1024: (8.7, 34), 2048: (32, 49), 4096: (86, 51), 8192: (130, 51), 16384: (164, 54)}
GEMMUL8_SOURCE = ("GEMMul8 (Ozaki scheme II on INT8 tensor cores) on a GH200: as published by RIKEN-RCCS, "
                  "<https://github.com/RIKEN-RCCS/GEMMul8>, method in "
                  "[arXiv:2508.03984](https://arxiv.org/abs/2508.03984); not measured here.")

# Named streams with loads: the name in a record, what it is, and what it shows. Rules of docs/register-file.md.
_LOADS = (
    ("an LDS.64, even and odd in turn", "one LDS.64 in 128", "the stall (rules 8, 10)"),
    ("an LDS.128, even and odd in turn", "one LDS.128 in 128", "two pairs fit into it"),
    ("an LDS.64, FFMAs that write nothing", "one LDS.64 in 128, FFMAs that write no register",
     "it is the writing that costs"),
    ("an LDS.64, FFMAs that write odd ones", "one LDS.64 in 128, FFMAs that write one bank",
     "a pair wants both ports (rule 8)"),
    ("an LDS of an even register, FFMAs that write such", "one LDS in 128, FFMAs that write its bank", "rule 7"),
    ("the same, FFMAs that write odd ones", "the same, the other bank", "the port of its bank is free"),
    ("an LDS.64, a NOP 11 behind it", "one LDS.64 in 64, a NOP 11 behind it", "too early (rule 9)"),
    ("the same, 15 behind it", "the same, 15 behind it", "the free cycle comes in time"),
    ("the same, 29 behind it", "the same, 29 behind it", "as late as it may (rule 10)"),
    ("the same, 31 behind it", "the same, 31 behind it", "it ends a stall that has begun"),
    ("the same, 33 behind it", "the same, 33 behind it", "too late"),
    ("an LDS.128, a NOP 20 behind it", "one LDS.128 in 64, a NOP 20 behind it", "it needs two free cycles"),
    ("the same, two NOPs", "the same, two NOPs", "here they are"),
    ("an LDS.64 each 16", "one LDS.64 in 16", "the next load's own cycle is free, and in time"),
    ("two LDS.128 14 apart", "two LDS.128 in 128, 14 apart", "no free cycle for the first pair"),
    ("two LDS.128 16 apart", "two LDS.128 in 128, 16 apart", "from 16 on there is"),
)

_LIKE = 2  # as accurate as: mean errors of at most so many times


def grid(header: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table, those columns aligned to the left, figures to the right."""
    lines = [f"| {' | '.join(header)} |", "|" + "".join("---|" if i in left else "---:|" for i in range(len(header)))]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def rows_of(records: Sequence[Row]) -> list[Row]:
    """Measured rows of bench records; a variant that several of them have comes from the first."""
    return _first(records, "rungs", lambda row: bool(row.get("ratio_to_cublas")))


def suites_of(records: Sequence[Row]) -> list[Row]:
    """The summaries, likewise."""
    return _first(records, "suites", lambda entry: entry["geomean"] is not None)


def _first(records: Sequence[Row], key: str, wanted: Any) -> list[Row]:
    found: list[Row] = []
    taken: set[Variant] = set()
    for record in records:
        own = [row for row in record[key] if wanted(row) and Variant.of(row) not in taken]
        taken |= {Variant.of(row) for row in own}
        found += own
    return found


def _label(variant: Variant) -> str:
    return "IEEE" if variant == IEEE else variant.label


def suite_table(records: Sequence[Row]) -> str:
    """Suites in IEEE and emulated arithmetic: geometric mean, worst row, share of wins. Of other variants the squares
    are shown, in a table of their own."""
    return grid(("precision", "suite", "rows", "geometric mean", "wins", "worst", "at"), (
        (_label(Variant.of(e)), e["suite"], str(e["rows"]), f"{e['geomean']:.3f}", f"{100 * e['wins']:.0f} %",
         f"{e['worst']:.3f}", e["worst_name"]) for e in suites_of(records) if Variant.of(e) in BOTH),
        left=(0, 1, 6))


def square_table(records: Sequence[Row], least: int = 0, beyond: bool = True) -> str:
    """TFLOPS of the squares and the ratio to cuBLAS in the same run, in IEEE and emulated arithmetic; ``beyond``: then
    the ratios of other variants. What cuBLAS reached is the ladder's to say: its clock differs from run to run."""
    rows = [row for row in rows_of(records) if row["suite"] == "square" and row["shape"][0] >= least]
    at = {(row["shape"][0], Variant.of(row)): row for row in rows}
    sizes, others = sorted({size for size, _ in at}), [v for v in dict.fromkeys(map(Variant.of, rows)) if v not in BOTH]

    def cell(size: int, variant: Variant, key: str, digits: int) -> str:
        row = at.get((size, variant))
        return "" if row is None else f"{row[key]:.{digits}f}"

    parts = [grid(("M = N = K", *(x for v in BOTH for x in (f"{_label(v)}, TFLOPS", "of cuBLAS"))), [
        (str(size), *(cell(size, v, *how) for v in BOTH for how in (("tflops", 1), ("ratio_to_cublas", 2))))
        for size in sizes])]
    if beyond and others:
        parts.append(grid(("of cuBLAS, M = N = K", *map(_label, others)), [
            (str(size), *(cell(size, v, "ratio_to_cublas", 2) for v in others))
            for size in sizes if any((size, v) in at for v in others)]))
    return "\n".join(parts)


def overview(records: Sequence[Row]) -> str:
    """The README's: squares from 1024 in IEEE and emulated arithmetic, and how all suites' products come out."""
    said = "; ".join(f"{_label(variant)} {e['geomean']:.2f}, {e['worst']:.2f} at worst"
                     for variant in BOTH for e in suites_of(records)
                     if e["suite"] == "all" and Variant.of(e) == variant)
    count = max((e["rows"] for e in suites_of(records) if e["suite"] == "all"), default=0)
    suites = f"\nGeometric mean of the ratios of all suites' {count} products: {said}.\n" if said else ""
    return square_table(records, 1024, beyond=False) + suites


def others_table(records: Sequence[Row]) -> str:
    """Our emulated products beside what others have published; empty without ours."""
    ours = {row["shape"][0]: row for row in rows_of(records)
            if row["suite"] == "square" and Variant.of(row) == EMULATED}
    rows = [(str(size), f"{theirs:g}", f"{theirs / base:.2f}", f"{ours[size]['tflops']:.1f}",
             f"{ours[size]['ratio_to_cublas']:.2f}")
            for size, (theirs, base) in GEMMUL8.items() if size in ours]
    if not rows:
        return ""
    return grid(("M = N = K", "GEMMul8, GH200, TFLOPS", "of cuBLAS there", "emulated, here, TFLOPS", "of cuBLAS here"),
                rows) + f"\n{GEMMUL8_SOURCE}\n"


def accuracy_table(record: Row) -> str:
    """Largest and mean error of every kind of random data at the largest size, a column each contender."""
    rows = [row for row in accuracy_rows(record) if row["test"] == "random" and "max_error" in row]
    names = sorted(dict.fromkeys(row["contender"] for row in rows), key=lambda name: name != record["against"])
    lines = []
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        size = max(row["shape"][2] for row in own)
        at = {row["contender"]: row for row in own if row["shape"][2] == size}
        cells = [" / ".join(_error(at[name][key]) for key in ("max_error", "mean_error")) if name in at else ""
                 for name in names]
        lines.append([family, str(size), *cells])
    return grid(("data", "M = N = K", *names), lines)


def names_table(record: Row) -> str:
    """A line for each name of a precision: its mean error with each kind of data and with the longest K, and whether
    that is FP32's."""
    rows = [row for row in accuracy_rows(record) if "mean_error" in row]
    columns = {(f"{row['test']}: {row['family']}", max(other["shape"][2] for other in rows
                                                        if other["test"] == row["test"])): row for row in rows}
    means: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows:
        at = (f"{row['test']}: {row['family']}", row["shape"][2])
        if at in columns:
            means.setdefault(row["contender"], {})[at] = row["mean_error"]
    standard = means[record["against"]]
    lines = []
    for name, own in means.items():
        worse = [column for column, mean in own.items() if not mean <= _LIKE * standard[column]]
        verdict = "yes" if not worse else "no" if len(worse) == len(own) else "not " + _shared(worse, list(own))
        lines.append([f"`{name}`", *(_error(own[column]) if column in own else "" for column in columns), verdict])
    left_out = "".join(f"\nLeft out: {why}.\n" for why in record["unavailable"].values())
    return grid(("name", *(f"{what}, K = {k}" for what, k in columns), f"at most {_LIKE} times {record['against']}'s"),
                lines) + left_out


def _shared(worse: Sequence[tuple[str, int]], of: Sequence[tuple[str, int]]) -> str:
    """The one test, or kind of data, that ``worse`` is of all columns; else each of them."""
    for part in (0, 1):
        names = {what.split(": ")[part] for what, _ in worse}
        if len(names) == 1 and len(worse) == sum(what.split(": ")[part] in names for what, _ in of):
            return names.pop()
    return ", ".join(what for what, _ in worse)


def _error(value: float | str) -> str:
    return f"{value:.2g}" if isinstance(value, (int, float)) else value


def workload_table(record: Row) -> str:
    """Time, speed-up and agreement of each workload."""
    return grid(("workload", "timed", "products", "ms", "speed-up", "from FP64", "from torch's FP32"), (
        (row["workload"], row["unit"], row["products"], f"{row['ms']:.2f}", f"{row['speedup']:.2f}",
         f"{row['from_fp64']:.2g}", "" if row["products"] == "torch" else f"{row['from_fp32']:.2g}")
        for row in record["rungs"]), left=(0, 1, 2))


def programs_table(record: Row) -> str:
    """Time, speed-up and agreement of each program; what was not installed, below."""
    rows = [row for row in record["rungs"] if "error" not in row]
    missing = [row["error"] for row in record["rungs"] if "error" in row]
    torchs = {row["program"]: row["ms"] for row in rows if row["products"] == "torch"}
    return grid(("program", "of", "timed", "products", "ms", "10-90 %", "speed-up", "of the medians",
                 "from torch's FP32", "from FP64"), (
        (row["program"], f"{row['package']} {row['version']}", row["unit"], row["products"], f"{row['ms']:.2f}",
         f"{row['spread_ms'][0]:.2f}-{row['spread_ms'][1]:.2f}", f"{row['speedup']:.2f}",
         f"{torchs[row['program']] / row['ms']:.2f}", "" if row["products"] == "torch" else _error(row["from_fp32"]),
         "" if row["from_fp64"] is None else _error(row["from_fp64"])) for row in rows), left=(0, 1, 2, 3)
        ) + "".join(f"\nLeft out: {what}.\n" for what in missing)


def run_table(record: Row) -> str:
    """Programs with and without `peakgemm run`; what failed, below."""
    def cell(row: Row, name: str, form: str, factor: float = 1) -> str:
        return f"{factor * row[name]:{form}}" + " %" * (factor == 100) if name in row else ""

    rows = [row for row in record["found"] if "error" not in row]
    lines = [("program", "products", "ms a step", "speed-up", "of Amdahl's", "of its FP32 operations",
              "error over plain's", "largest check"), *(
        (row["name"], row["how"], f"{row['ms']:.2f}", f"{row['speedup']:.2f}",
         *(("", "", "", "") if row["how"] == "plain" else (
             cell(row, "of_amdahl", ".0f", 100), cell(row, "share", ".1f", 100), cell(row, "of_plain", ".2f"),
             f"{row['checks']['largest']:.2g}" if row["checks"] else "")))
        for row in rows)]
    measured = [column for column in zip(*lines, strict=True) if any(column[1:])]
    head, *body = zip(*measured, strict=True)
    return grid(head, body, left=(0, 1)) + "".join(
        f"\nLeft out: {row['name']}: {row['error']}.\n" for row in record["found"] if "error" in row)


def linalg_table(record: Row) -> str:
    """A line for each case, ours in both precisions; of complex products by three real ones a line of its own."""
    cases: dict[tuple[str, bool], dict[str, Row]] = {}
    for row in record["rungs"]:
        if "ms" in row:
            cases.setdefault((row["name"], row["precision"] == "emulated-3m"), {})[row["precision"]] = row
    lines = []
    for (name, by_three), at in cases.items():
        cells = [name + ", by three" * by_three, next(iter(at.values()))["baseline"]]
        for precision in ("ieee", "emulated-3m" if by_three else "emulated"):
            row = at.get(precision)
            cells += ["", "", ""] if row is None else [f"{row['ms']:.3g}", f"{row['baseline_ms']:.3g}",
                                                       f"{row['ratio']:.2f}"]
        share = at.get("emulated", {}).get("share_of_product")
        lines.append([*cells, "" if share is None else f"{share:.2f}"])
    return grid(("case", "beside", "ieee, ms", "that, ms", "ratio", "emulated, ms", "that, ms", "ratio",
                 "of our product"), lines, left=(0, 1))


def newcomer_table(record: Row) -> str:
    """Minutes from a clone to each of a newcomer's steps."""
    rows = record["found"]
    return grid(("step", "command", "minutes", "since the clone"), (
        (row["step"], f"`{row['shown']}`", f"{row['seconds'] / 60:.1f}", f"{row['since_clone_seconds'] / 60:.1f}")
        for row in rows), left=(0, 1)) + f"\n{record['machine']}. Command: `{record['command']}`.\n"


def configs_table(records: Sequence[Row]) -> str:
    """Named configurations of rungs, and tiles."""
    lines = []
    for row in (row for record in records for run in runs_of(record) for row in run["rungs"]):
        c = row["config"]
        tile = f"{c['bm']}x{c['bn']}x{c['bk']} / {c['tm']}x{c['tn']}" + ", double-buffered" * (c["stages"] == 2)
        lines.append((f"{row['number']:02}", row.get("config_name") or "", tile, str(row["registers"]),
                      str(row["blocks_per_sm"]), f"{row['tflops']:.1f}", f"{row['ratio_to_cublas']:.3f}"))
    return grid(("rung", "configuration", "block x BK / thread", "registers", "blocks/SM", "TFLOPS", "of cuBLAS"),
                lines, left=(0, 1, 2))


def bill_table(entries: Sequence[Row]) -> str:
    """Bills of `python -m lab.bill` side by side, in per cent of the issue slots; those that were timed."""
    timed = [entry for entry in entries if "parts" in entry]
    heads = [f"{entry['kernel']} {entry['shape'][0]}" if entry["number"] is None
             else f"rung {entry['number']:02}, {entry['shape'][0]}" for entry in timed]
    lines = [(what, *(f"{100 * entry['parts'][part]:.2f}" for entry in timed)) for part, what in bill.PARTS.items()
             if any(round(entry["parts"][part], 5) for entry in timed)]
    return grid(("% of the issue slots", *heads), lines)


def registers_table(record: Row) -> str:
    """Named streams, then the model's errors by kind of stream, of `python -m lab.registers`."""
    def shown(stream: str) -> str:
        ops = stream.split(" | ")
        return "; ".join(f"`{op}`" for op in ops) if len(ops) <= 8 else f"{len(ops)} instructions"

    named = [(row["name"], shown(row["stream"]),
              *(f"{row[key]:.3f}" for key in ("model", "alone", "model_shared", "one_warp", "two_warps")))
             for row in record["streams"] if row["kind"] == "named"]
    kinds = [(kind["kind"], str(kind["streams"]), str(kind["exact"]), f"{kind['mean_error']:.4f}",
              f"{kind['largest_error']:.3f}", f"{kind['mean_error_shared']:.4f}",
              f"{kind['largest_error_shared']:.3f}") for kind in record["kinds"]]
    return (grid(("stream", "", "model", "alone", "shared: model", "one warp", "two"), named, left=(0, 1))
            + "\nCycles an instruction, a scheduler: one warp alone on its SM; shared: one a scheduler, by the "
              "model and measured; two.\n\n"
            + grid(("kind", "streams", "exact", "mean error", "largest", "shared: mean", "largest"), kinds)
            + "\nErrors in cycles an instruction, one warp alone on its SM; shared: one a scheduler, by its model. "
            "Exact: the model's whole cycles a turn.\n")


def precisions_table() -> str:
    """What the library knows of names of precisions."""
    return grid(("name", "how it is asked for", "as accurate as FP32", "of ours"), (
        (f"`{one.name}`", f"`{one.asked}`", one.fp32, f'`"{one.ours}"`') for one in precisions()), left=(0, 1, 2, 3))


def limits_table(record: Row) -> str:
    """Modelled beside measured, of `python -m lab.limits`."""
    found = record["found"]
    lines = [(f"{row['number']:02} {row['name'].replace('_', ' ')}", f"{row['modelled_tflops']:.2f}",
              f"{row['tflops']:.2f}", f"{100 * row['error']:+.0f} %", row["limiter"],
              row["profiler"].replace("_", " ")) for row in found]
    return (grid(("rung", "modelled TFLOPS", "measured", "error", "limiter by the model", "by Nsight Compute"), lines,
                 left=(0, 4, 5))
            + f"\n{_within(found, 0.15)} of {len(lines)} are within 15 %, {_within(found, 0.3)} within 30 %; the "
              f"limiter agrees for {sum(row['agrees'] for row in found)}.\n")


def _within(rows: Sequence[Row], error: float) -> int:
    return sum(abs(row["error"]) <= error for row in rows)


def loads_table(record: Row) -> str:
    """What a load costs beyond its issue slot among FFMAs that write even and odd registers in turn, or as it says."""
    found = {}
    for row in record["streams"]:
        if row["kind"] == "named":
            ops = row["stream"].split(" | ")
            loads = sum(op.startswith("LDS") for op in ops)
            if loads:
                scale = len(ops) / loads
                found[row["name"]] = [scale * (row[key] - 1) for key in ("model", "alone")]
    return grid(("loop of FFMAs", "the rule", "measured", "what it shows"), [
        (said, f"{found[name][0]:.1f}", f"{found[name][1]:.1f}", why) for name, said, why in _LOADS], left=(0, 3)
        ) + "\nCycles more a load than its issue slot; measured with one warp alone on its SM.\n"


def counters_table(record: Row) -> str:
    """A row a launch: instructions, and sectors and wavefronts over the fewest that its accesses could do with."""
    lines = []
    for row in record["rungs"]:
        case = "x".join(map(str, row["shape"])) + f" {row['layout']}" + (f", {row['batch']} of" * (row["batch"] > 1))
        for kernel, found in row["launches"].items():
            cells = [case, row.get("precision", "ieee"), kernel, f"{found['warp_instructions']:,}"]
            for name in ("global_sectors", "shared_wavefronts"):
                count = found.get(name, 0)
                cells += [f"{count:,}", f"{count / found[name + '_ideal']:.2f}" if count else ""]
            lines.append(cells)
    return grid(("case", "precision", "launch", "warp instructions", "sectors", "over ideal", "wavefronts",
                 "over ideal"), lines, left=(0, 1, 2))


def reproducible_table(record: Row) -> str:
    """Speed of reproducible products beside our default's, cuBLAS's and Triton's, of lab/reproducible_speed.py."""
    lines = [(" x ".join(map(str, row["shape"])) + (" NT" if row.get("layout") == "NT" else ""),
              f"{row['tflops']['reproducible']:.1f}",
              *(f"{row['ratios'][other]:.2f}" for other in ("default", "cublas", "triton")))
             for row in record["speeds"]["rows"]]
    return grid(("M x N x K", "TFLOPS", "of our default", "of cuBLAS", "of Triton, one tile for every shape"), lines)


def jax_table(record: Row) -> str:
    """What lab/jax_check.py measured of products inside ``jit``."""
    found = record["jax"]
    squares = [(name.removeprefix("4096 "), f"{row['ms']:.2f}", f"{row['ratio']:.2f}")
               for name, row in found.items() if name.startswith("4096 ")]
    return (grid(("4096 cubed in jit", "ms", "of jnp.matmul at highest"), squares)
            + f"\nA call inside `jit` costs the host {found['host_us']['more']:.1f} us more than XLA's own product. "
              f"{len(found['training']['xla']['losses'])} training steps of a small network have XLA's losses to "
              f"{max(found['training'][name]['off'] for name in ('ieee', 'emulated')):.0e}.\n")


def scale_table(record: Row) -> str:
    """Speed-up of collectives with products over one GPU, then beside NCCL, of `python -m lab.scale`."""
    rows = record["scale"]["ranks"]["products"]
    strong = [(f"`{row['call']}`", row["precision"], str(row["m"]), f"{row['speedup']:.2f}",
               f"{100 * row['efficiency']:.0f} %") for row in rows if row["scaling"] == "strong"]
    few = [(row["precision"], str(row["m"]), f"{row['ms']:.3f}", f"{row['ratio_to_nccl_torch']:.2f}",
            f"{row['ratio_to_nccl_ours']:.2f}") for row in rows if row["scaling"] == "rows"]
    return (grid(("call", "", "M", "speed-up", "efficiency"), strong, left=(0, 1))
            + "\n" + grid(("", "M", "ms", "of NCCL and torch.mm in FP32", "of NCCL and our product"), few)
            + "\nThe second table: `all_gather_matmul` with N = K = 8192; ratios of times, above 1 ours is faster.\n")


def scaling_table(record: Row) -> str:
    """Speed-up over one GPU of collectives with products, the same product on all GPUs and one that grows with them."""
    return grid(("call", "", "scaling", "M", "speed-up", "efficiency"), [
        (f"`{row['call']}`", row["precision"], row["scaling"], str(row["m"]), f"{row['speedup']:.2f}",
         f"{100 * row['efficiency']:.0f} %")
        for row in record["scale"]["ranks"]["products"] if row["scaling"] in ("weak", "strong")], left=(0, 1, 2))


def host_table(record: Row) -> str:
    """Products of host arrays on one GPU and on several, beside the same of arrays that lie there."""
    rows = record["scale"]["host"]["rows"]
    times = {(row["size"], row["precision"], row["gpus"]): row for row in rows}
    both = [(times[row["size"], row["precision"], 1], row) for row in rows if row["gpus"] > 1]
    return grid(("", "M = N = K", "on the GPU, ms", "one GPU, ms", "share", "GPUs", "ms", "speed-up"), [
        (row["precision"], str(row["size"]), f"{row['in_core_ms']:.4g}", f"{one['ms']:.4g}",
         f"{100 * one['share_of_in_core']:.0f} %", str(row["gpus"]), f"{row['ms']:.4g}", f"{row['speedup']:.2f}")
        for one, row in both])


def host_arrays_table(record: Row) -> str:
    """Products of host arrays on one GPU beside what a user of torch writes, and the same of arrays that lie there."""
    head = ("", "M = N = K", "on the GPU, ms", "host arrays, ms", "share", "torch, ms", "torch's time over ours")
    return grid(head, [
        (row["precision"], str(row["size"]), f"{row['in_core_ms']:.3g}", f"{row['ms']:.3g}",
         f"{100 * row['share_of_in_core']:.0f} %", f"{row['torch_ms']:.4g}", f"{row['ratio_to_torch']:.2f}")
        for row in sorted(record["scale"]["host"]["rows"], key=lambda row: row["precision"] != "ieee")])


TUNED = (14, 16)  # the rung that ptxas compiled, and the same rebuilt in SASS


def tuned_table(record: Row) -> str:
    """The rebuilt rung of a ladder's record beside its source, by their ratios to cuBLAS, which is timed
    with each in pairs: at 700 W the clock of a second run is another."""
    lines = []
    for run in runs_of(record):
        rows = [row for row in run["rungs"] if row["number"] in TUNED]
        lines += [(str(run["shape"][0]), f"{row['number']:02} {row['name'].replace('_', ' ')}",
                   f"{row['tflops']:.2f}", f"{row['ratio_to_cublas']:.3f}",
                   f"{row['ratio_to_cublas'] / rows[0]['ratio_to_cublas']:.3f}") for row in rows]
    return grid(("M = N = K", "rung", "TFLOPS", "of cuBLAS", "of the compiler's"), lines, left=(1,))


def loops_table(record: Row) -> str:
    """The main loops of both side by side: what each is made of."""
    rungs = [row for row in runs_of(record)[0]["rungs"] if row["number"] in TUNED]
    measures: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("instructions", lambda row: str(row["loop_instructions"])),
        ("of these FFMA", lambda row: f"{row['loop_ffma']} ({100 * row['ffma_fraction']:.1f} %)"),
        ("LDS.128", lambda row: str(row["widths"]["LDS"]["128"])),
        ("loads that never run, before cp.async", lambda row: str(row["classes"]["other"])),
        ("copies", lambda row: str(row["classes"]["move"])),
        ("accumulators that change their register", lambda row: f"{100 * row['accumulators_moved']:.1f} %"),
        ("loads in a row, at most", lambda row: str(row["loads_in_a_row"])),
        ("modelled cycles an FFMA, by register banks", lambda row: f"{row['bank_cycles_per_ffma']:.3f}"),
        ("registers a thread", lambda row: str(row["registers"])))
    return grid(("a turn of the loop, 16 steps of K", *(f"rung {row['number']}" for row in rungs)),
                [(label, *(of(row) for row in rungs)) for label, of in measures])
