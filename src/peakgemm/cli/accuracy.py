"""``peakgemm accuracy``: how accurate GEMMs are, on the same data as a reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..errors import InvalidValue, PeakgemmError
from ..runtime import device
from ..tools.accuracy import judge, table
from ..tools.accuracy.arrays import Torch
from ..tools.accuracy.cases import cases_of
from ..tools.accuracy.contenders import NAMES
from ..tools.accuracy.families import FAMILIES
from ..tools.accuracy.suite import TESTS, Report
from ..tools.bench import records
from ..tools.bench.peers import visiting
from ..tools.report.figures import WIDTH, error_chart
from . import console, parse
from .console import err, out
from .measuring import keep

COLOURS = {"pass": "green", "worse": "yellow", "fail": "red", "skipped": "dim"}
MARKS = {"pass": "ok", "worse": "worse", "fail": "FAIL", "skipped": "-"}
ACROSS = 4  # contenders in a table of 100 columns
WIDEST = 18
CAPTION = ("Errors: largest/mean of |C - AB| / (eps |A||B|) at the largest size, else the worst figure; the verdict is "
           "the worst of all sizes. Special values: passed of tried.")


def command(
    suite: Annotated[str, typer.Option(help="gemm, or linalg: errors on hostile matrices.")] = "gemm",
    of: Annotated[list[str] | None, typer.Option(
        help=f"{', '.join(NAMES)}, or package.module:function; repeat for more.  [peakgemm:ieee]")] = None,
    against: Annotated[str | None, typer.Option(help="The reference.  [cublas; numpy without a GPU]")] = None,
    sizes: Annotated[str | None, typer.Option(help="N[,N...] of the squares.  [16,32,...,4096; host: 512]")] = None,
    ks: Annotated[str | None, typer.Option(help="K[,K...] of 256x256xK.  [64,256,...,65536; host: 16384]")] = None,
    families: Annotated[str | None, typer.Option(help=f"Some of {', '.join(FAMILIES)}.  [all]")] = None,
    tests: Annotated[str | None, typer.Option(help=f"Some of {', '.join(TESTS)}.  [all]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all data.")] = 0,
    host: Annotated[bool, typer.Option("--host", help="NumPy arrays, also where there is a GPU.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if anything did not pass.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
    svg: Annotated[Path | None, typer.Option("--plot", help="Plot errors against K to this SVG file.")] = None,
) -> None:
    """Judge GEMMs: errors against FP64 beside a reference's, structure, exactness, special values; or linear algebra.
    """
    records.check_writable(json, svg)
    records.check_writable(svg)
    if svg and tests is not None and not {"random", "long-k"} & set(_words(tests) or ()):
        raise InvalidValue(f"--plot shows errors against K, --tests {tests} has none; add random or long-k")
    if suite not in ("gemm", "linalg"):
        raise InvalidValue(f"unknown suite {suite!r}; valid ones: gemm, linalg")
    gpu = None if host else device.find()
    with console.bars() as start:
        if suite == "linalg":
            given = {"--of": of, "--against": against, "--ks": ks, "--families": families, "--tests": tests,
                     "--plot": svg}
            parse.only_for("products", given, "suite linalg")
            if gpu is None and not host:
                out.print(f"Not judged: {device.reason_without_gpu()}")
                return
            report, strict = _linalg(host, _numbers(sizes), seed, partial(start, "judging")), True
        else:
            report = judge(*(of or ["peakgemm:ieee"]), reference=against, sizes=_numbers(sizes), ks=_numbers(ks),
                           families=_words(families), tests=_words(tests), seed=seed, host=host,
                           progress=partial(start, "judging"))
    for name, why in report.unavailable.items():
        err.print(f"Left out: {name}: {why}", soft_wrap=True)
    _show(report)
    measured_on = gpu if report.place == "torch" else None
    if json is not None:
        keep(json, records.record(
            measured_on, parse.target(None, gpu), [{"rungs": cases_of(report.rows)}], versions=_versions(report),
            against=report.reference, seed=report.seed, arrays=report.place, unavailable=report.unavailable))
    if svg is not None:
        drawn = error_chart(report.rows, ("long-k", "random"),
                            f"{measured_on.name if measured_on else 'host'}: error against FP64", WIDTH)
        if drawn is None:
            raise InvalidValue("--plot shows errors against K, and none was found; run the test random or long-k")
        records.write_text(svg, drawn.text(alone=True))
        out.print(f"Plot written to {svg}")
    if strict and report.failures:
        raise typer.Exit(1)


def _linalg(host: bool, sizes: list[int] | None, seed: int, progress: Callable[[int], Callable[[str], None]]) -> Report:
    arrays = Torch("cpu" if host else "cuda")  # which refuses by name where torch is missing
    from ..tools.accuracy import linalg

    return linalg.judge(arrays.device, sizes, seed, progress)


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def _numbers(text: str | None) -> list[int] | None:
    parts = _words(text)
    if parts is None:
        return None
    for part in parts:
        if not (part.isascii() and part.isdecimal()):
            raise InvalidValue(f"{part!r} is not a size; write numbers such as 64,256,1024")
    return [int(part) for part in parts]


def _versions(report: Report) -> dict[str, str]:
    if report.place != "torch":
        return {}
    jax = {"jax": version("jax")} if any(name.startswith("jax:") for name in report.contenders) else {}
    try:
        with visiting() as peer:
            return peer.versions() | jax
    except PeakgemmError:
        return jax


def _show(report: Report) -> None:
    names = [report.reference, *(name for name in report.contenders if name != report.reference)]
    present = dict.fromkeys(row["test"] for row in report.rows)
    for start in range(0, len(names), ACROSS):
        part = names[start:start + ACROSS]
        rows: list[list[str | Text]] = [
            [f"{test}: {family}" if test != family and test != "special" else family, *map(_cell, cells)]
            for test in present for family, cells in table.lines(report, test, part)]
        console.table(f"Accuracy, reference {report.reference}", [
            ("test", "left"), *((_header(name), "left") for name in part)], rows,
            CAPTION if start + ACROSS >= len(names) else "")
        out.print()
    for line in table.failures(report):
        out.print(line, soft_wrap=True)
    failed, judged = len(report.failures), len(report.judged)
    out.print(f"{failed} of {judged} verdicts are no pass." if failed else f"All {judged} verdicts: pass.")


def _header(name: str) -> str:
    """A name that fits: of somebody's function the end."""
    return name if len(name) <= WIDEST else f"~{name[1 - WIDEST:]}"


def _cell(cell: tuple[str, str]) -> Text:
    verdict, text = cell
    return Text.assemble((MARKS[verdict], COLOURS[verdict]), f" {text}".rstrip())
