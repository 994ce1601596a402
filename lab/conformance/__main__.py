"""Other libraries' own tests, run with peakgemm in their place; every test's outcome is written.

    python -m lab.conformance --json results/h100/conformance.json --tests ~/tests

``--tests`` is a folder with a checkout of data-apis/array-api-tests and its submodule; also, if wanted, a
test_linalg.py of the installed torch. Other suites are those of the installed torch and SciPy. What is not installed is
left out, and said. Needs pytest, hypothesis, ndindex, array-api-compat, pytest-json-report and expecttest.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from lab.conformance.outcomes import FAILED, Outcome
from lab.conformance.suites import jobs
from lab.runner import run
from peakgemm.cli.console import err, out
from peakgemm.runtime import device
from peakgemm.tools.bench import records

SUITES = ("torch", "torch-file", "array-api", "scipy")
PACKAGES = ("torch", "scipy", "cupy-cuda13x", "array-api-compat", "hypothesis", "pytest")


def command(
    json: Annotated[Path, typer.Option(help="Write the record to this file.")],
    suite: Annotated[list[str] | None, typer.Option(help=f"One or several of {', '.join(SUITES)}.  [all]")] = None,
    tests: Annotated[Path | None, typer.Option(help="The folder of tests that are no package's.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="Of torch's tests.  [ieee, emulated]")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Without a GPU: interpret its programs.")] = False,
) -> None:
    """Run the suites beside each other, each in a process of its own, and count outcomes."""
    records.check_writable(json)
    gpu = None if simulate else device.find()
    wanted = {name: job for name, job in jobs(tests, precision or ["ieee", "emulated"], gpu is not None, simulate)
              if name.partition(",")[0] in (suite or SUITES)}

    def outcomes_of(name: str) -> list[Outcome]:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            try:
                outcomes = pool.submit(wanted[name]).result() or [
                    Outcome(name, "the suite itself", FAILED, "no test ran")]
            except Exception as error:  # the process died, say: the other suites are run
                outcomes = [Outcome(name, "the suite itself", FAILED, records.first_line(error))]
        counts = Counter(each.outcome for each in outcomes)
        out.print(f"{name}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}", markup=False)
        return outcomes

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = [each for outcomes in threads.map(outcomes_of, wanted) for each in outcomes]
    rows = [{key: value for key, value in each._asdict().items() if value} for each in found]
    records.write(json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"tests": rows}], simulated=simulate,
                                       versions=dict(_versions())))
    failed = [each for each in found if each.outcome == FAILED]
    for each in failed:
        err.print(f"Failed: {each.suite}: {each.test}: {each.reason}", markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _versions() -> Iterator[tuple[str, Any]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


if __name__ == "__main__":
    run(command)
