"""`lab.profile` from the plan to the choice, on a GPU whose times are those of hidden numbers, with noise."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from random import Random

import numpy as np
import pytest

from commands import fits, here, run, valid
from fake_peer import FakePeer, peer
from host_peer import HostBound, HostPeer
from lab.profile import __main__ as tune_profile
from lab.profile import (
    check as profile_check,
)
from lab.profile import (
    fit as profile_fit,
)
from lab.profile import (
    least_squares,
    stopwatch,
)
from lab.profile import (
    plan as profile_plan,
)
from lab.profile import (
    rows as profile_rows,
)
from lab.profile import (
    times as profile_times,
)
from lab.profile.plan import Planned, plan
from lab.profile.stopwatch import Done, Row
from lab.profile.times import Timed, TimedProduct
from peakgemm.cli import doctor
from peakgemm.errors import CompileFailed, LaunchFailed
from peakgemm.kernels.emulated.streamed import FUSED
from peakgemm.kernels.profile import Machine, Profile
from peakgemm.kernels.recipe import Recipe
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem
from peakgemm.runtime import device
from peakgemm.runtime.device import Gpu
from peakgemm.selection import tuned
from peakgemm.selection.choose import candidates, choose
from peakgemm.selection.machine import machine, machine_with, shipped
from peakgemm.selection.profile_file import parse, read, to_json
from peakgemm.tools.bench.suites import suites
from peakgemm.tools.bench.timer import Timer

__all__ = ["here", "peer", "run"]
GPU = Gpu(0, "NVIDIA Unheard-of", "sm_90", 132, 1980, 3352.0, 50 << 20, "13.0")
PRODUCTS, NOISE = 70, 0.02


def hidden(prior: Profile) -> Profile:
    """Another GPU's numbers: each a fifth off, up or down."""
    draw, found = Random(5), prior
    groups = ["tiled", "wide", "small", "skinny", "chain", "emulated",
              *(f"clusters {i}" for i in range(len(prior.clusters)))]
    for path in (path for group in groups for path in profile_rows.numbers_of(group, prior)):
        value = profile_rows.get(prior, path)
        if value > 0:
            most = 1.0 if str(path[-1]).endswith("share") else 1e9
            found = profile_rows.changed(found, path, min(value * exp(draw.gauss(0, 0.2)), most))
    return replace(found, emulated=replace(found.emulated, worth_share=0.9))


class Synthetic:
    """A stopwatch of modelled times; ``limit`` products are compiled in time, and ``stop`` rows are timed until
    Ctrl-C."""

    def __init__(self, truth: Machine, limit: int = 1000, stop: int = 1 << 30) -> None:
        self.truth, self.limit, self.stop, self.draw = truth, limit, stop, Random(1)

    def compile(self, planned: Sequence[Planned], deadline: float, done: Done) -> list[Planned]:
        return list(planned[:self.limit])

    def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
        self.stop -= len(rows)
        if self.stop < 0:
            raise KeyboardInterrupt
        found: list[list[float] | None] = []
        for kernel, config in rows:
            one = profile_rows.row(problem, kernel, config, 1.0, 1.0, self.truth)
            us = profile_rows.estimate_us(one, self.truth)
            found.append([us * exp(self.draw.gauss(0, NOISE)) for _ in range(3)])
        return [None, *found[1:]] if len(rows) > 5 else found  # one of them does not run


@pytest.fixture(scope="module")
def prior() -> Machine:
    return machine_with(shipped("generic"), "sm_90", 132)


@pytest.fixture(scope="module")
def truth(prior: Machine) -> Machine:
    return replace(prior, profile=hidden(prior.profile))


@pytest.fixture(scope="module")
def timed(prior: Machine, truth: Machine) -> list[TimedProduct]:
    watch = Synthetic(truth)
    measured = list(profile_times.measure(plan(prior, PRODUCTS), watch, time.monotonic() + 60, lambda what: None))
    return profile_times.products(profile_times.fields_of(measured))


@pytest.fixture
def on_gpu(here: Path, truth: Machine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A GPU, its stopwatch, and few products."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(here / "cache"))
    tuned.forget()

    def arm(gpu: Gpu = GPU, **how: int) -> None:
        monkeypatch.setattr(device, "find", lambda index=None: gpu)
        monkeypatch.setattr(device, "require", lambda index=None: gpu)
        monkeypatch.setattr(device, "count", lambda: 1)
        monkeypatch.setattr(tune_profile, "find_peer", FakePeerOfVersions)
        monkeypatch.setattr(tune_profile, "GpuStopwatch", lambda gpu, machine, peer: Synthetic(truth, **how))
        monkeypatch.setattr(tune_profile, "plan", lambda gpu: plan(gpu, 30))
    yield arm
    monkeypatch.undo()
    tuned.forget()


class FakePeerOfVersions:
    def versions(self) -> dict[str, str]:
        return {"torch": "2"}


def test_the_plan_is_drawn_and_of_no_suite(prior: Machine) -> None:
    planned = plan(prior, 40)
    assert planned == plan(prior, 40)
    known = {case.problem()[0] for suite in suites("all,drawn").values() for case in suite}
    assert not known & {one.problem for one in planned}
    other = {one.problem for one in profile_check.plan({"prior": prior}, 40)}
    assert not other & {one.problem for one in planned}, "a check has products of its own"
    groups = {profile_rows.row(one.problem, *row, 1.0, 1.0, prior).group for one in planned for row in one.rows}
    assert {"tiled", "wide", "small", "skinny", "chain", "emulated"} <= groups
    assert all(1 < len(one.rows) <= 17 and len(set(one.rows)) == len(one.rows) for one in planned)
    assert all(profile_plan.KERNELS[profile_plan.label(kernel)] is kernel for one in planned for kernel, _ in one.rows)
    assert profile_plan.programs(planned, prior)


def test_without_tensor_cores_none_are_planned() -> None:
    old = machine("sm_75", 40)
    assert {kernel.name for one in plan(old, 12) for kernel, _ in one.rows} <= {"staged", "skinny"}


def test_the_fit_finds_what_was_hidden(timed: list[TimedProduct], prior: Machine, truth: Machine) -> None:
    before, best = profile_fit.residuals(timed, prior), profile_fit.residuals(timed, truth)
    found = profile_fit.fitted(timed, prior)
    after = found.residuals
    assert before["ieee"]["choice_loss"]["p90"] > 0.1 and before["ieee"]["model_error"]["median"] > 0.06
    for name in ("ieee", "emulated"):
        assert after[name]["model_error"]["median"] <= best[name]["model_error"]["median"] + 0.01
        assert after[name]["model_error"]["p90"] <= best[name]["model_error"]["p90"] + 0.03
        assert after[name]["choice_loss"]["median"] <= 0.02 and after[name]["choice_loss"]["p90"] <= 0.04
    assert after["held_out"] == PRODUCTS // 5 and after["products"] == PRODUCTS
    assert found.emulated.worth_share is not None


def test_tensor_cores_that_do_not_win_are_not_taken(timed: list[TimedProduct], prior: Machine) -> None:
    slow = [replace(one, rows=tuple(replace(row, us=row.us * (6 if row.kernel.folder == "emulated" else 1))
                                    for row in one.rows)) for one in timed[:20]]
    assert profile_fit.fitted(slow, prior).emulated.worth_share is None


def test_numbers_that_choose_worse_go_back(timed: list[TimedProduct], prior: Machine,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a group whose fit goes astray."""
    refit = profile_fit._refitted

    def astray(group: str, rows: Sequence[profile_rows.Row], gpu: Machine) -> Machine:
        found = refit(group, rows, gpu)
        if group != "skinny":
            return found
        return replace(found, profile=profile_rows.changed(found.profile, ("skinny", "start_us"), 50.0))

    monkeypatch.setattr(profile_fit, "_refitted", astray)
    found = profile_fit.fitted(timed[:40], prior)
    assert found.residuals["not_fitted"] == ["skinny"] and found.skinny == prior.profile.skinny


def test_few_times_move_little(timed: list[TimedProduct], prior: Machine) -> None:
    """What no row speaks of stays, and a wild row does not carry numbers off."""
    wild = [replace(one, rows=tuple(Timed(row.kernel, row.config, row.us / (50 if i else 1)) for row in one.rows))
            for i, one in enumerate(timed[1:5])]
    found = profile_fit.fitted([timed[0], *wild], prior)
    parse(to_json(found))  # within what a file may hold
    for path in profile_rows.numbers_of("tiled", prior.profile):
        before, after = (profile_rows.get(profile, path) for profile in (prior.profile, found))
        assert before <= 0 or 1 / 8.01 < after / before < 8.01, path
    assert all(f"{x:.4g}" == str(x).rstrip("0").rstrip(".") or x == float(f"{x:.4g}") for x in (
        profile_rows.get(found, path) for path in profile_rows.numbers_of("tiled", found)))


def test_least_squares() -> None:
    x = np.linspace(0.5, 3, 40)
    wild = np.where(np.arange(40) == 7, 3.0, 0.0)  # one row that no curve explains

    def residuals(at: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        return (0.4 * x - 0.3 + wild - (at[0] * x + at[1]))[list(rows)]

    every = [range(40)] * 3
    at = least_squares.fit(residuals, every, np.full(3, -2.0), np.full(3, 2.0), np.ones(40))
    assert at[:2] == pytest.approx([0.4, -0.3], abs=0.03) and at[2] == 0.0
    at = least_squares.fit(residuals, every, np.full(3, -2.0), np.array([0.1, 2.0, 2.0]), np.ones(40))
    assert at[0] <= 0.1


def found_times() -> set[str]:
    return set(os.listdir(tuned.folder(GPU.name)))


def test_times_are_kept_beside_the_profile(on_gpu: Callable[..., None], run: Callable) -> None:
    on_gpu()
    assert run("lab.profile")[0] == 0
    assert found_times() == {"profile.json", "profile-times.json"}
    assert valid(tuned.folder(GPU.name) / "profile-times.json")["rungs"]


def test_the_command(on_gpu: Callable[..., None], run: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    on_gpu()
    code, said, err = run("lab.profile", "--minutes", "1", "--json", "times.json")
    assert (code, err) == (0, ""), err
    assert fits("\n".join(line for line in said.splitlines() if not line.endswith(": written")))  # a path, whole
    assert "held out" in said and "choice loss" in said and '"emulated" takes tensor cores from K = ' in said
    record = valid(Path("times.json"))
    assert record["device"]["name"] == GPU.name and len(record["rungs"]) == 30
    assert choose(Problem.contiguous(500, 500, 500), GPU.arch, 132, GPU.name).reason.endswith(
        "by the numbers of the profile 'nvidia-unheard-of'")
    doctor.out.print(*doctor._profile(GPU))
    assert found_times() == {"profile.json"}, "times go where --json says"
    assert "yours, nvidia-unheard-of, of " in " ".join(capsys.readouterr().out.split())
    kept = read(tuned.folder(GPU.name) / "profile.json")
    assert kept.gpus == (GPU.name,) and kept.source == "times.json" and kept.command.startswith("python -m lab.profile")
    # Again from the times, on a machine without a GPU: the same numbers.
    assert run("lab.profile", "--from", "times.json", "-o", "again.json")[0] == 0
    again = read(Path("again.json"))
    assert again.name == "again"
    assert to_json(replace(again, name=kept.name, command=kept.command, date=kept.date)) == to_json(kept)


def test_the_shipped_profile_is_refitted_in_its_place(on_gpu: Callable[..., None], run: Callable) -> None:
    on_gpu(replace(GPU, name="NVIDIA H100 80GB HBM3"))
    assert run("lab.profile", "-o", "h100.json")[0] == 0
    found = read(Path("h100.json"))
    assert found.name == "h100" and found.gpus == shipped("h100").gpus and found.device == shipped("h100").device
    assert found.source == "times that were not kept"


def test_too_few_products(on_gpu: Callable[..., None], run: Callable) -> None:
    on_gpu(limit=7)
    code, said, err = run("lab.profile", "--json", "times.json")
    assert code == 2 and "7 of 30 products were compiled in time" in said
    assert "7 products were timed, a profile wants 10 at least; give more --minutes" in err
    assert len(valid(Path("times.json"))["rungs"]) == 7, "the times are kept all the same"


def test_an_interrupt_leaves_nothing(on_gpu: Callable[..., None], run: Callable) -> None:
    on_gpu(stop=100)
    code, _, _ = run("lab.profile", "--json", "times.json", "-o", "profile.json")
    assert code != 0 and set(os.listdir(".")) <= {"cache"}
    assert not (tuned.folder(GPU.name) / "profile.json").exists()


def test_the_budget_is_kept(prior: Machine, truth: Machine) -> None:
    planned = plan(prior, 6)
    assert list(profile_times.measure(planned, Synthetic(truth), time.monotonic() - 1, lambda what: None)) == []


@pytest.mark.parametrize(("words", "says"), [
    (("--from", "none.json"), "none.json holds no times"),
    (("--from", "other.json"), "other.json is no record of kernels' times on a GPU"),
    (("--from", "old.json"), "these times are of another version, of a kernel or field 'gone'"),
    (("--from", "x.json", "--json", "y.json"), "give one of them"),
    (("-o", "gone/profile.json"), "cannot write gone/profile.json"),
])
def test_what_is_refused(here: Path, run: Callable, words: tuple[str, ...], says: str) -> None:
    (here / "other.json").write_text(json.dumps({"rungs": [{}], "device": None}))
    (here / "old.json").write_text(json.dumps({"device": GPU.to_json(), "rungs": [{"timed": []}],
                                               "programs": [{"kernel": "gone", "config": {}}]}))
    code, _, err = run("lab.profile", *words)
    assert code == 2 and says in " ".join(err.split()), err


def test_dry_run(here: Path, run: Callable) -> None:
    code, said, _ = run("lab.profile", "--dry-run", "--arch", "sm_80")
    assert code == 0 and fits(said)
    assert "beginning with the profile 'generic'" in said and "A100" in said and " times, " in said


def test_a_check_tells_what_choices_lose(prior: Machine, truth: Machine) -> None:
    machines = {"shipped": truth, "generic": prior}
    planned = profile_check.plan(machines, 25)
    rows = list(profile_check.losses(planned, machines, Synthetic(truth), lambda what: None))
    found = profile_check.summary(rows)
    assert len(rows) > 15 and all(min(row["losses"].values()) >= 0 for row in rows)
    assert found["shipped"]["p90"] < 0.05 < found["generic"]["p90"]


def test_works_are_timed_in_turns(peer: FakePeer) -> None:
    timer = Timer(peer)
    found = timer.each([[peer.work("a", 0.05)], [peer.work("b", 0.3), peer.work("c", 0.5)]], ms=0.59, rounds=4)
    assert found == [pytest.approx([0.05] * 4), pytest.approx([0.4] * 4)]
    assert peer.captured == 1, "what takes less than a launch's time on the host is replayed"
    bursts = "".join(peer.calls[-4 * (12 + 2 + 2):])
    assert bursts == ("a" * 12 + "|" + "bc" + "|") * 4
    assert timer.each([], ms=0.6, rounds=4) == []


class Turns:
    """`Timer.each` that runs every work once; of a kind it says how many there are."""

    def __init__(self, peer: HostPeer) -> None:
        pass

    def each(self, kinds: Sequence[Sequence[Callable[[], None]]], *, ms: float, rounds: int) -> list[list[float]]:
        for works in kinds:
            works[0]()
        return [[len(works) * 1e-3] * rounds for works in kinds]


def test_a_stopwatch_times_what_runs(prior: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.contiguous(64, 64, 256)
    rows = [(kernel, config) for kernel, config, _ in candidates(problem, prior)[:3]]
    rows.append((FUSED, FUSED.default))

    def refuses(kernel: Kernel, config: Config, *more: object) -> HostBound:
        if (kernel, config) == rows[1]:
            raise LaunchFailed("too many resources requested")
        return HostBound(kernel, config, *more)

    monkeypatch.setattr(stopwatch, "bind", refuses)
    monkeypatch.setattr(stopwatch, "Timer", Turns)
    watch = stopwatch.GpuStopwatch(replace(GPU, l2_bytes=1 << 18), prior, HostPeer())
    sets = pytest.approx([5.0] * stopwatch.ROUNDS)  # of 147 KB, beyond twice the L2
    assert watch.times(problem, rows) == [sets, None, sets, sets]


def test_a_stopwatch_compiles_until_its_deadline(prior: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, made, told = plan(prior, 3), [], []
    bad = profile_plan.key(profile_plan.compilations(*planned[0].rows[0], planned[0].problem, prior)[0])

    def make(recipe: Recipe, kind: str) -> None:
        if profile_plan.key(recipe) == bad:
            raise CompileFailed("ptxas: no")
        made.append(recipe)

    monkeypatch.setattr(Recipe, "make", make)
    watch = stopwatch.GpuStopwatch(GPU, prior, HostPeer())
    programs = profile_plan.programs(planned, prior)
    ready = watch.compile(planned, time.monotonic() + 60, told.append)
    assert len(made) == len(programs) - 1 and len(told) == len(programs)
    assert planned[0].rows[0] not in ready[0].rows and len(ready) == 3
    assert watch.compile(planned, time.monotonic() - 1, told.append) == []
