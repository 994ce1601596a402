"""`lab.choice`: candidates timed within a budget, kept, read back, what a profile's choice loses, and a fit."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import exp, log
from pathlib import Path
from random import Random
from statistics import median

import pytest

from commands import COLUMNS, here, valid
from host_peer import HostPeer
from lab.choice import __main__ as choice
from lab.choice import fit
from lab.choice.loss import loss
from lab.choice.plan import plan, products
from lab.choice.rows import SCHEME, Measured, Row, Rows, fields_of, rows_of
from peakgemm import cli
from peakgemm.cli import console
from peakgemm.errors import InvalidValue
from peakgemm.kernels.profile import Machine
from peakgemm.problem import Problem
from peakgemm.runtime.device import Gpu
from peakgemm.selection.choose import candidates
from peakgemm.selection.machine import machine_with, shipped
from peakgemm.selection.profile_file import read
from peakgemm.tools.bench import records
from peakgemm.tools.bench.suites import drawn_cases

__all__ = ["here"]
RECORD = Path(__file__).parents[2] / "results" / "h100" / "choice.json"
GPU = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.0, 50 << 20, "13.0")
HERE = machine_with(shipped(), "sm_90", 132)


class Modelled:
    """A stopwatch whose times are the models', with noise."""

    def __init__(self, truth: Machine, noise: float = 0.0) -> None:
        self.truth, self.noise, self.draw = truth, noise, Random(1)

    def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
        us = {each[:2]: each.us for scheme in (None, SCHEME) for each in candidates(problem, self.truth, scheme)}
        return [[us[row] * exp(self.draw.gauss(0, self.noise)) for _ in range(5)] for row in rows]


def timed(count: int, truth: Machine = HERE) -> list[Measured]:
    planned = plan(products("drawn", 11, count), HERE)
    return list(choice.times(planned, Modelled(truth, 0.05), Modelled(truth), time.monotonic() + 60, lambda what: None))


@pytest.fixture(scope="module")
def measured() -> list[Measured]:
    return timed(12)


def test_a_record_gives_back_what_was_measured(here: Path, measured: list[Measured]) -> None:
    records.write(here / "choice.json", records.record(GPU, "sm_90", [fields_of(measured)]))
    rows = rows_of(valid(here / "choice.json"))
    assert len(rows) == 12 and [each.held_out for each in rows[:4]] == [True, False, False, True]
    for back, product in zip(rows, measured, strict=True):
        assert back.problem == product.case.problem()[0]
        assert back.us == {key: pytest.approx(sorted(us)[2], rel=1e-3) for key, us in product.samples.items()}
    assert not {each.problem for each in rows} & {case.problem()[0] for case in islice(drawn_cases(0), 200)}


def test_a_worse_profile_loses_more(measured: list[Measured]) -> None:
    rows = rows_of(json.loads(json.dumps(fields_of(measured))))
    wrong = replace(HERE.profile, tiled=replace(HERE.profile.tiled, start_us=9.0, turnover_factor=30.0),
                    emulated=replace(HERE.profile.emulated, worth_share=None))
    own, other = ([loss(each, replace(HERE, profile=profile)) for each in rows]
                  for profile in (HERE.profile, wrong))
    assert all(min(each.ieee, each.scheme or 0, each.emulated or 0) >= 0 for each in own + other)
    assert sum(each.ieee for each in own) < 0.5 < sum(each.ieee for each in other)
    assert max(each.emulated or 0 for each in own) < 0.3 < max(each.emulated or 0 for each in other)


def test_what_does_not_run_is_left_out_and_time_is_kept() -> None:
    planned = plan(products("drawn", 11, 4), HERE)

    class Refuses(Modelled):
        def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
            if problem == planned[1].problem:
                raise MemoryError
            return [None, *super().times(problem, rows)[1:]]

    found = list(choice.times(planned, Refuses(HERE), Modelled(HERE), time.monotonic() + 60, lambda what: None))
    assert [each.case for each in found] == [planned[i].case for i in (0, 2, 3)]
    assert all(planned[i].rows[0] not in each.samples for i, each in zip((0, 2, 3), found, strict=True))
    assert list(choice.times(planned, Refuses(HERE), Modelled(HERE), time.monotonic() - 1, lambda what: None)) == []


def test_the_commands(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["lab/choice.py", *words])
        with pytest.raises(SystemExit) as end:
            cli.run(choice.app)
        return end.value.code or 0, capsys.readouterr().out

    monkeypatch.setattr(console.out, "width", COLUMNS)
    monkeypatch.setattr("peakgemm.runtime.device.require", lambda: GPU)
    monkeypatch.setattr(choice, "find_peer", HostPeer)
    monkeypatch.setattr(choice, "GpuStopwatch", lambda *what: Modelled(HERE))
    monkeypatch.setattr(choice, "compile_ahead", lambda recipes, deadline, done: {*list(recipes)[5:]})
    assert run("measure", "--count", "16", "--json", "choice.json")[0] == 0
    assert 10 < len(valid(here / "choice.json")["rungs"]) < 16, "some are incomplete"
    code, said = run("loss", "--rows", "choice.json")
    assert code == 0 and "generic" in said and "held out" in said
    assert run("loss", "--rows", "none.json")[0] == 2
    assert run("measure", "--dry-run", "--count", "3")[0] == 0
    assert run("measure")[0] == 2
    monkeypatch.setattr(choice, "LEAST", 16)
    assert run("fit", "--rows", "choice.json", "-o", "mine.json")[0] == 2, "too few products"
    monkeypatch.setattr(choice, "LEAST", 4)
    monkeypatch.setattr(choice, "fitted", lambda rows, gpu: gpu.profile)
    assert run("fit", "--rows", "choice.json", "-o", "mine.json")[0] == 0
    mine = read(here / "mine.json")
    assert mine.name == "mine" and mine.architecture == "sm_90" and mine.residuals["held out"]["ieee"]["count"] > 1
    assert run("loss", "--rows", "choice.json", "--profile", "mine.json")[1].count("mine") == 6


def test_a_fit_comes_back_to_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """From numbers that are wrong, by times of the right ones: choices lose little again."""
    monkeypatch.setattr(fit, "_ROUNDS", 3)
    monkeypatch.setattr(fit, "_MOVES", (1.05,))
    rows = [Rows(each.case, each.case.problem()[0], {row: sorted(us)[2] for row, us in each.samples.items()},
                 each.held_out) for each in timed(9)]
    numbers = HERE.profile
    wrong = replace(HERE, profile=replace(
        numbers, tiled=replace(numbers.tiled, start_us=6.0, turnover_factor=6.0),
        emulated=replace(numbers.emulated, panels_chunk_us=0.7, worth_share=None)))
    found = fit.fitted(rows, wrong)
    assert found.tiled.turnover_factor < 3 and found.emulated.panels_chunk_us > 0.9
    assert found.emulated.worth_share is not None
    before, after = (sum(loss(each, replace(HERE, profile=profile)).ieee for each in rows)
                     for profile in (wrong.profile, found))
    assert after < 0.5 * before


@pytest.fixture(scope="module")
def recorded() -> list[Rows]:
    return rows_of(json.loads(RECORD.read_text()))


def test_the_shipped_profile_loses_little_of_what_was_measured(recorded: list[Rows]) -> None:
    losses = [loss(each, HERE) for each in recorded]
    for values in ([each.ieee for each in losses], [each.emulated for each in losses if each.emulated is not None]):
        assert sorted(values)[len(values) // 2] <= 0.02 and sorted(values)[int(0.9 * len(values))] <= 0.1
        assert sum(values) / len(values) < 0.035


@pytest.mark.parametrize(("section", "error"), [
    ("tiled", 0.045), ("small", 0.084), ("skinny", 0.087), ("emulated", 0.085)])
def test_the_models_are_near_what_was_measured(recorded: list[Rows], section: str, error: float) -> None:
    """The median error of candidates that take up to a quarter more than the fastest."""
    errors = []
    for product in recorded:
        for tensor in (False, True) if product.of(tensor=True) else (False,):
            us = {each[:2]: each.us for each in candidates(product.problem, HERE, SCHEME if tensor else None)}
            least = min(product.us[row] for row in product.of(tensor))
            errors += [abs(log(us[row] / product.us[row])) for row in product.of(tensor) if row in us
                       and row[0].family.numbers == section and product.us[row] <= 1.25 * least]
    assert len(errors) > 100 and median(errors) < error


@pytest.mark.parametrize("change", [{"programs": [{"kernel": "gone", "config": {}}]}, {"rungs": [{"shape": [1, 2]}]}])
def test_other_records_are_refused(measured: list[Measured], change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=r"python -m lab\.choice measure"):
        rows_of({**fields_of(measured), **change})
