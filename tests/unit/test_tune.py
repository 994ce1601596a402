"""`peakgemm tune`: halving, entries and tables on disk, and the command; the GPU is NumPy's, its clock the test's."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands import here, run
from host_peer import GPU, HostBound, HostPeer, HostTimer
from peakgemm.calls import launch
from peakgemm.errors import CompileFailed, InvalidValue
from peakgemm.kernels.emulated.schemes import Scheme
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.profile import Machine
from peakgemm.kernels.validity import is_valid
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.selection import choose as choose_module
from peakgemm.selection import tuned
from peakgemm.selection.choose import Candidate, choose
from peakgemm.selection.machine import machine
from peakgemm.tools.bench.suites import cases
from peakgemm.tools.bench.timer import Comparison
from peakgemm.tools.tune import search, space, store
from peakgemm.tools.tune.halving import Outcome, halve, rounds

PROBLEM = Problem.contiguous(96, 80, 64)


def named(number: int, us: float = 10.0) -> Candidate:
    """Candidate of that number: its raster says it."""
    return Candidate(SPECIALISED, replace(SPECIALISED.default, raster=number + 1), us)


def number(candidate: Candidate) -> int:
    return candidate.config.raster - 1


FIELD = [named(i) for i in range(21)]  # the default is 0


class Race:
    """Comparisons whose ratios are as told; what was compared, for how long."""

    def __init__(self, ratio: Callable[[int], list[float]]) -> None:
        self.ratio, self.log = ratio, []

    def __call__(self, candidate: Candidate, seconds: float) -> Comparison:
        self.log.append((number(candidate), seconds))
        return Comparison("graph", [1.0] * 10, self.ratio(number(candidate)), None, {})


def steady(fast: dict[int, float]) -> Callable[[int], list[float]]:
    return lambda i: [fast.get(i, 0.9 - i / 1000)] * 10


def right(candidate: Candidate) -> str | None:
    return None


@pytest.mark.parametrize(("count", "expected"), [
    (24, [(24, 0.1), (12, 0.2), (6, 0.4), (3, 0.8)]), (5, [(5, 0.4), (3, 0.8)]), (2, [(2, 0.8)]), (0, [])])
def test_rounds_halve_the_field_and_double_the_time(count: int, expected: list[tuple[int, float]]) -> None:
    assert rounds(count, 0.8) == expected


def test_what_fails_or_errs_leaves_the_search() -> None:
    def ratio(i: int) -> list[float]:
        if i in (1, 2):
            raise CompileFailed("too many registers\nlog")
        return [1.5 if i == 3 else 1.1] * 10

    found = halve(FIELD[:6], Race(ratio), lambda c: "wrong product" if number(c) == 3 else None, 0.8)
    assert number(found.winner) == 4  # 3 is fastest and wrong
    assert [text.split(": ", 1)[1] for text in found.refused] == ["too many registers"] * 2 + ["wrong product"]
    found = halve(FIELD[:3], Race(steady({1: 2.0, 2: 2.0})), lambda c: "wrong", 0.8)  # nobody is left
    assert (number(found.winner), found.best, found.replaced, len(found.refused)) == (0, None, False, 2)


def test_the_fastest_wins() -> None:
    race = Race(steady({17: 1.2, 3: 1.1}))
    found = halve(FIELD, race, right, 0.8)
    assert (number(found.winner), found.ratio, found.replaced, found.timed) == (17, 1.2, True, 20)
    assert [i for i, seconds in race.log if seconds == 0.1] == list(range(1, 21))
    assert {i for i, seconds in race.log if seconds == 0.8} == {17, 3, 1}  # 1: the best of the others
    assert 0 not in {i for i, _ in race.log}  # every comparison is with the default
    assert number(halve(FIELD, Race(lambda i: [1.1] * 10), right, 0.8).winner) == 1  # equals stay in the model's order


@pytest.mark.parametrize(("ratios", "replaced"), [
    ([1.005] * 10, False),               # less than 1 %
    ([1.0101] * 10, True),
    ([0.9, 0.95] + [1.05] * 8, False),   # better by the median, but within the noise
    ([0.9] + [1.05] * 9, True),          # one pair in ten may be off
    ([0.97] * 10, False),
])
def test_the_default_stays_unless_beaten_beyond_the_noise(ratios: list[float], replaced: bool) -> None:
    found = halve(FIELD[:3], Race(lambda i: ratios if i == 1 else [0.5] * 10), right, 0.8)
    assert (number(found.winner) == 1, found.replaced) == (replaced, replaced)
    assert number(found.best) == 1


@pytest.mark.parametrize(("arch", "shape"), [
    ("sm_75", "4096x4096x4096"), ("sm_86", "64x64x65536"), ("sm_90", "1x4096x4096"), ("sm_90", "33x35x37:TT"),
    ("sm_90", "64x64x64*1000")])
def test_candidates(arch: str, shape: str) -> None:
    problem, sms = cases(shape)[0].problem()[0], architecture(arch).gpu_sms
    found = space.candidates(problem, arch, sms, keep=12)
    choice = choose(problem, arch, sms)
    assert found[0][:2] == (choice.kernel, choice.config)
    assert len({c[:2] for c in found}) == len(found) <= 13
    assert all(is_valid(c.kernel, c.config, architecture(arch), problem) for c in found)
    times = [c.us for c in found[1:]]
    assert times == sorted(times)
    if arch == "sm_90":
        assert len(found) == 13


@pytest.mark.parametrize("shape", ["100x60x700:TN", "20x30x12*500"])
def test_candidates_have_sums_as_short_as_the_choice(shape: str) -> None:
    """So that an emulated product may run what is found for an IEEE one; none is timed twice for it."""
    problem = cases(shape)[0].problem()[0]
    found = space.candidates(problem, "sm_90", 132, keep=1000)
    assert found[0].config == choose(problem, "sm_90", 132, precision="emulated").config
    assert len({c[:2] for c in found}) == len(found) > 3


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "_said", set())
    tuned.forget()
    yield tmp_path
    tuned.forget()


def outcome(replaced: bool, config: Config | None = None, ratio: float = 1.25) -> Outcome:
    winner = Candidate(SPECIALISED, config or OTHER, 1.0)
    return Outcome(winner, ratio, (ratio - 0.05, ratio + 0.05), winner, replaced, 7)


OTHER = replace(SPECIALISED.default, raster=4, split=0)


def test_an_entry_goes_round(kept: Path) -> None:
    assert tuned.lookup(PROBLEM, GPU.name) is None
    assert choose(PROBLEM, GPU.arch, GPU.sm_count, GPU.name).source == "heuristic"
    path = store.save(GPU.name, PROBLEM, outcome(True), "heuristic")
    assert path == kept / "cache" / "tuned" / "nvidia-h100-80gb-hbm3" / "NN-96x80x64-b1-v44.json"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing aside is left
    assert tuned.lookup(PROBLEM, GPU.name) == ("specialised", OTHER)
    assert tuned.lookup(PROBLEM, "another GPU") is tuned.lookup(PROBLEM, "") is None
    assert tuned.lookup(replace(PROBLEM, k=65, lda=65), GPU.name) is None
    choice = choose(PROBLEM, GPU.arch, GPU.sm_count, GPU.name)  # no longer what it said before
    assert (choice.kernel, choice.config, choice.source) == (SPECIALISED, OTHER, "tuned")
    assert launch.choice_for(PROBLEM, GPU) == choice
    path.parent.chmod(0o777)
    with pytest.raises(InvalidValue, match="chmod go-w"):
        store.save(GPU.name, PROBLEM, outcome(True), "heuristic")
    path.parent.chmod(0o700)
    before = path.read_bytes()
    assert store.save(GPU.name, PROBLEM, outcome(False, ratio=0.99), "tuned") == path and path.read_bytes() == before
    path.write_text(json.dumps({**json.loads(before), "digest": "0" * 16}))  # of another source of the kernel
    tuned.forget()
    assert tuned.lookup(PROBLEM, GPU.name) is tuned.entry(GPU.name, tuned.key(PROBLEM)) is None


def test_entries_that_are_not_chosen(kept: Path) -> None:
    store.save(GPU.name, PROBLEM, outcome(False), "heuristic")
    assert tuned.lookup(PROBLEM, GPU.name) is None  # the default stays: remembered, not imposed
    assert tuned.entry(GPU.name, tuned.key(PROBLEM))["default"] is True
    store.save(GPU.name, PROBLEM, outcome(True, replace(OTHER, stages=40)), "heuristic")
    assert tuned.lookup(PROBLEM, GPU.name) is not None
    assert choose(PROBLEM, GPU.arch, GPU.sm_count, GPU.name).source == "heuristic"  # it is not valid here


@pytest.mark.parametrize("text", [
    "{", "[]", "null", '{"schema": 1, "kernel": "specialised"}',
    '{"schema": 1, "kernel": "nosuch", "config": {}, "digest": ""}',
    '{"schema": 1, "kernel": "specialised", "config": {"bm": 1}, "digest": ""}',
    '{"schema": 1, "kernel": "specialised", "config": {"bm": "x", "bn": 1, "bk": 1, "tm": 1, "tn": 1}, "digest": ""}',
    '{"schema": 1, "kernel": ["specialised"], "config": 7, "digest": ""}', "\x00\xff",
])
def test_garbage_is_ignored_with_one_warning(kept: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = store.folder(GPU.name)
    other = replace(PROBLEM, k=60, lda=60)
    for problem in (PROBLEM, other):
        (folder / f"{tuned.key(problem)}.json").write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING, "peakgemm"):
        assert tuned.lookup(PROBLEM, GPU.name) is tuned.lookup(other, GPU.name) is None
    (record,) = caplog.records
    assert "tune --again" in record.message
    assert choose(PROBLEM, GPU.arch, GPU.sm_count, GPU.name).source == "heuristic"


def times(config: Config, default: Config) -> float:
    """Milliseconds: the default takes 1, raster 4 half of it, all others 2."""
    return 1.0 if config == default else 0.5 if config.raster == 4 else 2.0


@pytest.fixture
def gpu(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """NumPy as the GPU; each problem has, beside its default, a candidate that is twice as fast."""
    considered = choose_module.candidates

    def candidates(problem: Problem, gpu: Machine, scheme: Scheme | None = None, ready: str = "") -> Sequence[Any]:
        if scheme is not None:
            return considered(problem, gpu, scheme, ready)
        tile = SpecialisedConfig(64, 64, 16, 8, 8, stages=6, producers=128)
        return [Candidate(SPECIALISED, replace(tile, raster=i + 1, split=1 + i % 2), 10.0 + i) for i in range(6)]

    def bind(kernel: Any, config: Config, problem: Problem, gpu: Any) -> Any:
        class Marked(HostBound):
            def launch(self, *args: int) -> None:
                clock.last = config
                super().launch(*args)
        return Marked(kernel, config, problem, gpu)

    class Clock(HostTimer):
        def __init__(self) -> None:
            super().__init__(self._ms)
            self.last: Config | None = None

        def _ms(self, work: Any) -> float:
            work()
            return times(self.last, candidates(PROBLEM, machine(GPU.arch, GPU.sm_count))[0][1])

    clock = Clock()
    monkeypatch.setattr(space, "considered", candidates)
    monkeypatch.setattr("peakgemm.selection.choose.candidates", candidates)
    monkeypatch.setattr(search, "bind", bind)
    monkeypatch.setattr(search, "in_parallel", lambda call, items: [call(item) for item in items])
    monkeypatch.setattr(search, "Timer", lambda *args: clock)
    monkeypatch.setattr(search, "visiting", lambda: nullcontext(HostPeer()))
    monkeypatch.setattr(search.device, "activated", lambda index: nullcontext())
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda index=None: GPU)
    monkeypatch.setattr("peakgemm.runtime.device.require", lambda index=None: GPU)
    monkeypatch.setattr("peakgemm.cli.tune.find_peer", HostPeer)
    monkeypatch.setattr("peakgemm.cli.tune.Timer", lambda *args: clock)
    return kept


PROBLEMS = [
    Problem(33, 35, 37, 40, 40, 36, trans_a=True, trans_b=True), Problem(20, 24, 28, 28, 24, 24, alignment=(4, 8, 16)),
    Problem(8, 9, 10, 10, 9, 9, 2.0, 0.5, c0=(0, 1), batch=Batch((2, 3), (240, 80), (0, 90), (216, 72), (0, 0))),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=tuned.key)
def test_best(gpu: Path, problem: Problem) -> None:
    kernel, config = search.best(problem, GPU)
    assert (kernel, config.raster) == (SPECIALISED, 4)
    assert tuned.lookup(problem, GPU.name) == ("specialised", config)


def test_a_wrong_winner_is_passed_over(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind = search.bind

    def off(kernel: Any, config: Config, problem: Problem, gpu: Any) -> Any:
        bound = bind(kernel, config, problem, gpu)
        bound.off = 1.0 if config.raster == 4 else 0.0
        return bound

    monkeypatch.setattr(search, "bind", off)
    peer = HostPeer()
    found = search.search(PROBLEM, GPU, peer, search.Timer(peer))
    assert (found.winner.config.raster, found.replaced) == (1, False)
    assert any("wrong product" in text for text in found.refused)


def test_the_command_tunes_and_resumes(gpu: Path, run: Any) -> None:
    code, out, err = run("tune", "--shape", "64x64x64,32x32x32:TN*3")
    assert (code, err) == (0, "")
    assert "2.000 (2.000-2.000)" in out.splitlines()[0]
    assert len(list((gpu / "cache" / "tuned").rglob("*.json"))) == 2
    _, out, _ = run("tune", "--shape", "64x64x64,32x32x32", "--dry-run")
    last = {line.split()[0]: line.split()[-1] for line in out.splitlines() if "x" in line.split()[0]}
    assert last["64x64x64"] == "tuned" and last["32x32x32"] != "tuned"
    code, out, _ = run("tune", "--shape", "64x64x64,16x16x16")
    assert "1 of 2 shapes are tuned already; --again" in out and "16x16x16: " in out and "\n64x64x64" not in out
    code, out, _ = run("tune", "--shape", "64x64x64", "--again")  # now the tuned entry is the default
    assert code == 0 and "64x64x64: specialised" in out


@pytest.mark.parametrize(("error", "exit_code", "tuned"), [(KeyboardInterrupt, None, 1), (RuntimeError, 1, 2)])
def test_an_end_or_a_failure_leaves_what_was_decided(gpu: Path, run: Any, monkeypatch: pytest.MonkeyPatch,
                                                     error: type[BaseException], exit_code: int | None,
                                                     tuned: int) -> None:
    def failing(problem: Problem, *args: Any, **more: Any) -> Outcome:
        if problem.m == 16:
            raise error("out of memory")
        return tune(problem, *args, **more)

    tune = search.tune
    monkeypatch.setattr(search, "tune", failing)
    code, _, _ = run("tune", "--shape", "64x64x64,16x16x16,32x32x32")
    assert code != 0 and exit_code in (None, code)
    assert len(list((gpu / "cache" / "tuned").rglob("*.json"))) == tuned


