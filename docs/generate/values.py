"""Single figures in the running text of pages, each from a record.

``<!-- =drawn.ratio -->1.72<!-- /= -->`` in a page is the value ``drawn.ratio`` of this module; `make publish` writes
it, and a test finds figures that stand outside of such marks and of the generated tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, median
from typing import Any

from peakgemm.errors import InvalidValue

MARK = re.compile(r"(<!-- =([\w.-]+) -->).*?(<!-- /= -->)", re.S)
Record = Mapping[str, Any]
Row = Mapping[str, Any]
LARGE = 1024  # from here on a square counts as large
UNCHOSEN = 0.97  # of cuBLAS: below, a product of the suite `drawn` is told by name


@dataclass(frozen=True)
class Value:
    """The text ``of`` a record, which lies at ``record`` under ``results/``."""

    record: str
    of: Callable[[Record], str]


def fill(text: str, load: Callable[[str], Record | None]) -> str:
    """``text`` with its values; one whose record is not there (``load`` gives None), or lacks its rows, says so.

    Raises:
        InvalidValue: a mark names no value.
    """
    def value(match: re.Match[str]) -> str:
        name = match[2]
        if name not in VALUES:
            raise InvalidValue(f"no value is named {name}; docs/generate/values.py has {', '.join(VALUES)}")
        record, said = load(VALUES[name].record), "not measured"
        if record is not None:
            with suppress(KeyError, StopIteration, ValueError):  # of an empty sequence
                said = VALUES[name].of(record)
        return f"{match[1]}{said}{match[3]}"

    return MARK.sub(value, text)


def _ratio(rows: Iterable[Row], peer: str | None = None) -> float:
    """The geometric mean of the ratios to cuBLAS, ours or a peer's."""
    found = [row["peers"].get(peer, {}).get("ratio_to_cublas") if peer else row["ratio_to_cublas"] for row in rows]
    return geometric_mean([ratio for ratio in found if ratio is not None])


def _square(record: Record) -> str:
    """The ratio to cuBLAS of the square of 8192."""
    return next(f"{row['ratio_to_cublas']:.2f}" for row in record["rungs"]
                if row["suite"] == "square" and row["shape"] == [8192] * 3)


def _of_ours(row: Row) -> float:
    """CUTLASS's speed over ours."""
    return float(row["peers"]["cutlass"]["ratio_to_cublas"] / row["ratio_to_cublas"])


def _microseconds(record: Record, name: str, whose: str) -> str:
    row = next(row for row in record["rungs"] if row["name"] == name)
    return f"{1000 * median(row['samples_ms'][whose]):.2f} us"


def _linalg(record: Record, name: str) -> str:
    """The ratio of a case in emulated precision."""
    return next(f"{row['ratio']:.1f}" for row in record["rungs"] if "ms" in row
                and (row["name"], row["precision"]) == (name, "emulated"))


def _failed(record: Record, field: Callable[[Row], float]) -> str:
    """Of the one case that fails, a number."""
    row, = (row for row in record["rungs"] if any(x["verdict"] == "fail" for x in row["results"].values()))
    return f"{field(row):.0f}"


def _speedup(record: Record, program: str) -> str:
    return next(f"{row['speedup']:.1f}" for row in record["rungs"]
                if (row["program"], row["products"]) == (program, "emulated"))


def _slow(record: Record) -> list[str]:
    rows = sorted((row for row in record["rungs"] if row["ratio_to_cublas"] < UNCHOSEN),
                  key=lambda row: float(row["ratio_to_cublas"]))
    names = [row["name"].replace("x", " x ").replace(":", " ").replace("*", " times ") for row in rows]
    return [f"{name} ({row['ratio_to_cublas']:.3f})" for name, row in zip(names, rows, strict=True)]


def _errors(record: Record, who: str, keep: Callable[[Row], bool], least: bool = False) -> tuple[float, float]:
    """The extreme ratios to cuBLAS's errors, (largest error, mean error), of the cases that ``keep`` takes."""
    pairs: list[tuple[float, float]] = []
    for row in record["rungs"]:
        own, other = row["results"].get(who, {}), row["results"].get("cublas", {})
        numbers = [one.get(key) for key in ("max_error", "mean_error") for one in (own, other)]
        if keep(row) and all(isinstance(number, float) and number > 0 for number in numbers):
            pairs.append((numbers[0] / numbers[1], numbers[2] / numbers[3]))
    pick = min if least else max
    return pick(pair[0] for pair in pairs), pick(pair[1] for pair in pairs)


def _few(row: Row) -> bool:
    return bool(max(row["shape"][:2]) < 1024)


def _few_short(row: Row) -> bool:
    return _few(row) and bool(row["shape"][2] <= 4096)


def _spanning(row: Row) -> bool:
    """Squares from 1024 on whose elements span many orders of magnitude."""
    return (row["test"] == "random" and row["family"] in ("exp4", "log-uniform", "subnormal", "huge")
            and row["shape"][0] >= 1024 and len(set(row["shape"])) == 1)


def _sums(record: Record, who: str) -> str:
    ratios = [row["errors"][who][1] / row["errors"]["cublas"][1] for row in record["rungs"]
              if _few(row) and row["errors"]["cublas"][1]]
    return f"{max(ratios):.2f}"


def _verdicts(record: Record, *wanted: str) -> list[Row]:
    return [row["results"]["peakgemm:emulated"] for row in record["rungs"]
            if row["results"].get("peakgemm:emulated", {}).get("verdict") in wanted]


def _error(record: Record, shape: Sequence[int], family: str, who: str) -> float:
    row = next(row for row in record["rungs"] if row["shape"] == list(shape) and row["family"] == family)
    return float(row["results"][who]["mean_error"])


def _span(low: tuple[float, float], high: tuple[float, float], place: int) -> str:
    return f"{low[place]:.2f} to {high[place]:.2f}"


def _off(record: Record, times: str) -> str:
    """How much predictions of products on several GPUs erred, from times of one GPU."""
    found = record["scale"]["off"][times]["products"]
    return f"{100 * found['median']:.0f} % in the median and {100 * found['p90']:.0f} %"


def _dtensor(record: Record) -> float:
    """The largest error of products of DTensors."""
    errors = record["scale"]["ranks"]["errors_eps"]
    return float(max(error for name, error in errors.items() if name.startswith("DTensor")))


def _lost(record: Record, way: str) -> str:
    """When a rank that had lost the other one ended."""
    return f"{next(one['after_s'] for one in record['scale']['lost_rank'] if one['way'] == way):.1f} s"


def _verified(record: Record) -> str:
    """The products that kept what is promised; broken promises as well, where there are any."""
    found = record["verified"]
    return f"{found['products']:,} products" + f", {len(found['broken'])} broken" * bool(found["broken"])


def _drawn_errors(record: Record, where: str) -> str:
    """How far the model misses drawn streams: the mean, and the largest."""
    kinds = [kind for kind in record["kinds"] if kind["kind"] != "named"]
    count = sum(kind["streams"] for kind in kinds)
    mean = sum(kind[f"mean_error{where}"] * kind["streams"] for kind in kinds) / count
    return f"{mean:.3f} on average and {max(kind[f'largest_error{where}'] for kind in kinds):.3f} at most"


def _apart(record: Record) -> str:
    """What a named stream costs with four schedulers at work."""
    row = next(row for row in record["streams"] if row["name"] == "two LDS.128 16 apart")
    return (f"{row['one_warp']:.3f} cycles an instruction for {row['alone']:.3f} alone, by the rule "
            f"{row['model_shared']:.3f}")


def _slowest_compiler(record: Record) -> float:
    """The least speed of a release's kernels over those of the fastest release, of large squares."""
    return min(float(min(row["ratios"].values()) / max(row["ratios"].values()))
               for row in record["found"] if row["shape"][0] >= LARGE)


def _program(record: Record, name: str) -> list[Row]:
    """Rows of a program: torch's products, then peakgemm's."""
    return [row for row in record["rungs"] if row["program"] == name and "error" not in row]


def _products(record: Record) -> str:
    """Products of an evaluation by GPyTorch; two repeats warm up, untimed."""
    row = next(row for row in _program(record, "GPyTorch") if row["products"] != "torch")
    return str(row["rerouted"] // (len(row["samples_ms"]) + 2))


def _between(record: Record, name: str) -> str:
    times = [ms for row in _program(record, name) for ms in row["samples_ms"]]
    return f"{min(times):.0f} to {max(times):.0f} ms"


def _of_certificates(record: Record, field: str, precision: str = "ieee") -> float:
    """A quotient of the square of 8192."""
    return float(next(row[field] for row in record["certificates"]["cost"]
                      if (row["n"], row["precision"]) == (8192, precision)))


def _added(record: Record, precision: str) -> str:
    return f"{100 * (_of_certificates(record, 'with_certificate_over_matmul', precision) - 1):.0f} %"


def _first_calls(record: Record) -> str:
    """Of what the wheel has cubins for."""
    times = [row["first_ms"] for row in record["found"] if row["name"] == "first call" and not row["compilations"]]
    return f"{min(times):.0f} to {max(times):.0f} ms"


PUBLIC = "h100/public-cuda.json"
TIMED, CERTIFIED = "h200/public-timing.json", "h200/certify.json"
BENCH, DRAWN, GATHERED = "h100/bench-cutlass.json", "h100/bench-drawn.json", "h100/bench-gathered.json"
ACCURACY, SUMS = "h100/accuracy.json", "h100/sums.json"
SCALE, KILLS = "h200-x2/scale.json", "h100/memmap-kill.json"
REPRODUCIBLE, PROGRAMS = "h100/reproducible-speed.json", "h100/programs.json"
SASS = "sm_90/sass-check.json"
REGISTERS = "h100/registers.json"
IEEE, EMULATED = "peakgemm:ieee", "peakgemm:emulated"
VALUES = {
    "public.files": Value(PUBLIC, lambda r: str(len(r["found"]))),
    "public.timed": Value(TIMED, lambda r: str(r["found"][0]["summary"]["timed"])),
    "public.median": Value(TIMED, lambda r: f"{100 * r['found'][0]['summary']['median_error']:.0f} %"),
    "public.largest": Value(TIMED, lambda r: f"{100 * r['found'][0]['summary']['largest_error']:.0f} %"),
    "public.correlation": Value(TIMED, lambda r: f"{r['found'][0]['summary']['rank_correlation']:.2f}"),
    "caches.first": Value("h200/first-calls.json", _first_calls),
    "bench.autotuned": Value("h200/autotuned.json", lambda r: f"{100 * max(x['largest'] for x in r['found']):.1f} %"),
    "certificate.reads": Value(CERTIFIED, lambda r: f"{_of_certificates(r, 'certify_over_read'):.1f}"),
    "certificate.ieee": Value(CERTIFIED, lambda r: _added(r, "ieee")),
    "certificate.emulated": Value(CERTIFIED, lambda r: _added(r, "emulated")),
    "public.predicted": Value(PUBLIC, lambda r: str(sum("tflops" in row for row in r["found"]))),
    "squares.ieee": Value("h100/bench-ieee.json", _square),
    "squares.emulated": Value("h100/bench-emulated.json", _square),
    "cutlass.rows": Value(BENCH, lambda r: str(len(r["rungs"]))),
    "cutlass.cutlass": Value(BENCH, lambda r: f"{_ratio(r['rungs'], 'cutlass'):.2f}"),
    "cutlass.triton": Value(BENCH, lambda r: f"{_ratio(r['rungs'], 'triton'):.2f}"),
    "cutlass.ours": Value(BENCH, lambda r: f"{_ratio(r['rungs']):.2f}"),
    "cutlass.most": Value(BENCH, lambda r: f"{max(map(_of_ours, r['rungs'])):.2f}"),
    "drawn.ratio": Value(DRAWN, lambda r: f"{_ratio(r['rungs']):.2f}"),
    "drawn.rows": Value(DRAWN, lambda r: str(len(r["rungs"]))),
    "drawn.wins": Value(DRAWN, lambda r: str(sum(row["ratio_to_cublas"] >= 1 for row in r["rungs"]))),
    "drawn.slow": Value(DRAWN, lambda r: str(len(_slow(r)))),
    "drawn.slow-names": Value(DRAWN, lambda r: ", ".join(_slow(r))),
    "gathered.ratio": Value(GATHERED, lambda r: f"{_ratio(r['rungs']):.2f}"),
    "gathered.ours": Value(GATHERED, lambda r: _microseconds(r, "32x32x1024", "ours")),
    "gathered.cublas": Value(GATHERED, lambda r: _microseconds(r, "32x32x1024", "cublas")),
    "accuracy.emulated-few": Value(ACCURACY, lambda r: "{1:.2f} and {0:.2f}".format(*_errors(r, EMULATED, _few))),
    "accuracy.ieee-few": Value(ACCURACY, lambda r: "{1:.2f} and {0:.2f}".format(*_errors(r, IEEE, _few))),
    "accuracy.ieee-short": Value(ACCURACY, lambda r: "{1:.2f} and {0:.2f}".format(*_errors(r, IEEE, _few_short))),
    "accuracy.cases": Value(ACCURACY, lambda r: str(len(_verdicts(r, "pass", "worse", "fail")))),
    "accuracy.passes": Value(ACCURACY, lambda r: str(len(_verdicts(r, "pass")))),
    "accuracy.spanning-largest": Value(ACCURACY, lambda r: _span(
        _errors(r, EMULATED, _spanning, least=True), _errors(r, EMULATED, _spanning), 0)),
    "accuracy.spanning-mean": Value(ACCURACY, lambda r: _span(
        _errors(r, EMULATED, _spanning, least=True), _errors(r, EMULATED, _spanning), 1)),
    "accuracy.short-sums": Value(ACCURACY, lambda r: f"{_error(r, (256, 256, 4096), 'uniform', 'cublas'):.2f} eps"),
    "accuracy.short-sums-ours": Value(ACCURACY, lambda r: f"{_error(r, (256, 256, 4096), 'uniform', EMULATED):.2f}"),
    "sums.rows": Value(SUMS, lambda r: str(sum(_few(row) for row in r["rungs"]))),
    "sums.ieee": Value(SUMS, lambda r: _sums(r, IEEE)),
    "sums.emulated": Value(SUMS, lambda r: _sums(r, EMULATED)),
    "scale.off-measured": Value(SCALE, lambda r: _off(r, "measured_times")),
    "scale.off-models": Value(SCALE, lambda r: _off(r, "cost_models")),
    "scale.losses": Value(SCALE, lambda r: f"{r['scale']['ranks']['training']['largest_difference']:.0e}"),
    "scale.dtensor": Value(SCALE, lambda r: f"{_dtensor(r):.2f} eps"),
    "scale.lost": Value(SCALE, lambda r: _lost(r, "overlapped")),
    "scale.lost-nccl": Value(SCALE, lambda r: _lost(r, "plain")),
    "kills.bytes": Value(KILLS, lambda r: f"{r['found'][0]['bytes'] / 1e9:.0f} GB"),
    "kills.kills": Value(KILLS, lambda r: str(len(r["found"][0]["kills"]))),
    "kills.twice": Value(KILLS, lambda r: str(r["found"][0]["computed_twice"] or "none")),
    "kills.tiles": Value(KILLS, lambda r: str(r["found"][0]["tiles"])),
    "registers.apart": Value(REGISTERS, _apart),
    "registers.drawn": Value(REGISTERS, lambda r: str(sum(x["streams"] for x in r["kinds"] if x["kind"] != "named"))),
    "registers.alone": Value(REGISTERS, lambda r: _drawn_errors(r, "")),
    "registers.shared": Value(REGISTERS, lambda r: _drawn_errors(r, "_shared")),
    "compilers.squares": Value("h100/compiler-squares.json", lambda r: f"{_slowest_compiler(r):.2f}"),
    "verify.h100": Value("h100/verify.json", _verified),
    "verify.h200": Value("h200/verify.json", _verified),
    "programs.gpytorch-ms": Value(PROGRAMS, lambda r: _between(r, "GPyTorch")),
    "programs.gpytorch-products": Value(PROGRAMS, _products),
    **{f"linalg.{word}": Value("h200/linalg.json", partial(_linalg, name=f"{name} 8192")) for word, name in (
        ("syrk", "syrk"), ("trsm", "trsm"), ("cholesky", "cholesky"), ("complex", "complex product"), ("lu", "lu"),
        ("qr", "qr"))},
    "linalg.failed-eps": Value("h200/accuracy-linalg.json", partial(
        _failed, field=lambda row: max(x["figure"] for x in row["results"].values()))),
    "linalg.failed-bound": Value("h200/accuracy-linalg.json", partial(_failed, field=lambda row: row["limit"])),
    "linalg.k-fac": Value("h100/programs-linalg.json", partial(_speedup, program="K-FAC")),
    "linalg.gp": Value("h100/programs-linalg.json", partial(_speedup, program="GPyTorch by Cholesky")),
    "reproducible.few": Value(REPRODUCIBLE, lambda r: f"{r['speeds']['summary']['least_of_default_of_few_rows']:.2f}"),
    "sass.instructions": Value(SASS, lambda r: f"{sum(x['instructions'] for x in r['compiler_output']):,}"),
    "sass.alarms": Value(SASS, lambda r: str(sum(x["with_hazards"] for x in r["compiler_output"]) or "no")),
    "sass.drawn": Value(SASS, lambda r: f"{r['faults']['drawn']:,}"),
    "sass.rejected": Value(SASS, lambda r: f"{r['faults']['rejected']:,}"),
}
