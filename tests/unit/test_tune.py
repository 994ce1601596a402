"""`peakgemm tune`: halving, entries and tables on disk, and the command; the GPU is NumPy's, its clock the test's."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
import stand_in
from commands import here, run
from host_peer import GPU, HostBound, HostPeer, HostTimer
from peakgemm import arrays
from peakgemm.calls import first_use, hooks, launch, plan
from peakgemm.calls.request import Request
from peakgemm.errors import CompileFailed, InvalidValue, MissingComponent
from peakgemm.kernels.emulated.schemes import Scheme
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.profile import Machine
from peakgemm.kernels.validity import is_valid
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime import driver
from peakgemm.runtime.architectures import architecture
from peakgemm.selection import choose as choose_module
from peakgemm.selection import tuned
from peakgemm.selection.choose import Candidate, Choice, choose
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


A, B = (np.random.default_rng(i).standard_normal((96, 96)).astype(np.float32) for i in (1, 2))


class Device:
    """Arrays of NumPy as a device's, products by NumPy: what was chosen for each that was bound, what was searched."""

    def __init__(self) -> None:
        self.memory = stand_in.StandIn()
        self.capture: int | str = 0  # cuStreamIsCapturing's answer, or the driver's refusal
        self.bound: list[Choice] = []
        self.searched: list[str] = []
        self.before: Callable[[], Any] = lambda: None  # a search
        self.meanwhile: Callable[[], Any] = lambda: None  # the driver says whether the stream captures

    def bound_for(self, problem: Problem, gpu: Any, choice: Choice) -> Any:
        self.bound.append(choice)
        return stand_in.Interpreted(problem, self.memory.memory)

    def check(self, call: str, stream: Any, status: Any) -> None:
        assert (call, stream.value) == ("cuStreamIsCapturing", stand_in.STREAM)
        if isinstance(self.capture, str):
            raise RuntimeError(self.capture)
        status._obj.value = self.capture
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def search(self, problem: Problem, gpu: Any, precision: str) -> tuple[Any, Config]:
        self.searched.append(precision)
        self.before()
        return search.best(problem, gpu, precision)

    def product(self, **more: Any) -> Choice:
        """What ran an eager product, which is right."""
        assert np.allclose(pg.gemm(A, B, **more), more.get("alpha", 1.0) * (A @ B), atol=1e-3)
        return self.bound[-1]

    def forget(self) -> None:
        """As another process would begin."""
        first_use._searched.clear()
        tuned.forget()


@pytest.fixture
def first(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The stand-in under ``PEAKGEMM_AUTOTUNE=1``."""
    it = Device()
    for module in (launch, plan):
        monkeypatch.setattr(module, "bound_for", it.bound_for)
    monkeypatch.setattr(driver, "check", it.check)
    monkeypatch.setitem(arrays._BY_TYPE, np.ndarray, it.memory)
    monkeypatch.setattr(first_use, "ALWAYS_TUNED", True)
    monkeypatch.setattr(first_use, "_searched", set())
    monkeypatch.setattr(first_use, "_failures", set())
    monkeypatch.setattr(hooks, "search", it.search)
    return it


def test_the_first_use_searches_if_asked_to(first: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "ALWAYS_TUNED", False)
    assert first.product().source == "heuristic"
    monkeypatch.setattr(first_use, "ALWAYS_TUNED", True)
    launch.calls.clear()
    pg.explain(A, B)
    assert first.searched == []
    choices = [first.product(), first.product(), first.product(alpha=2.0)]
    made = pg.plan(A, B)
    assert np.allclose(made.execute(A, B), A @ B, atol=1e-3)
    first.forget()
    choices += [first.product(), first.bound[-1]]
    assert {(choice.source, choice.config.raster) for choice in choices} == {("tuned", 4)}
    assert made.config == choices[0].config and first.searched == ["ieee"]


def test_what_is_never_searched(first: Device) -> None:
    first.product(reproducible=True)
    first.product(precision="fp16x3")
    first.product(alpha=0.0)
    assert not pg.matmul(A[:, :0], B[:0]).any()
    views = launch.views_of(first.memory, Request(A, B), stand_in.STREAM)
    launch.bound_call(Request(A, B), views, 0)  # as for arrays of the host, and in programs of JAX
    assert first.searched == []


def test_a_plan_searches_when_it_is_made(first: Device) -> None:
    assert pg.plan(A, B).config.raster == 4 and pg.plan(A, B).explain().source == "tuned"
    assert first.product().config.raster == 4 and first.searched == ["ieee"]


def test_a_default_that_stays_is_searched_once(first: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "times", lambda config, default: 1.0)
    default = first.product().config
    for _ in range(2):
        first.forget()
        assert first.product().config == default
    assert first.searched == ["ieee"] and default.raster == 1


@pytest.mark.parametrize("answer", [1, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"])
def test_a_capture_searches_nothing(first: Device, answer: int | str) -> None:
    first.capture = answer
    assert first.product().source == pg.plan(A, B).explain().source == "heuristic"
    assert first.searched == []
    first.capture = 0
    assert first.product().config.raster == 4


def test_one_thread_searches_and_no_other_waits(first: Device) -> None:
    searching, go_on = threading.Event(), threading.Event()
    first.before = lambda: (searching.set(), go_on.wait(60))
    thread = threading.Thread(target=first.product)
    thread.start()
    assert searching.wait(60)
    assert first.product().source == first.product(alpha=2.0).source == "heuristic"  # the latter of the same entry
    go_on.set()
    thread.join(60)
    assert first.product().config.raster == first.product(alpha=2.0).config.raster == 4
    assert first.searched == ["ieee"]


def test_a_search_that_another_thread_ended_is_not_repeated(first: Device) -> None:
    first.meanwhile = first.product
    assert first.product().source == "heuristic"
    launch.calls.clear()
    assert first.product().config.raster == 4 and first.searched == ["ieee"]


def test_a_search_that_fails_leaves_the_models_choice(first: Device, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise MissingComponent("no torch, no CuPy")

    first.before = fail
    assert first.product().source == first.product(alpha=2.0).source == "heuristic"
    assert np.allclose(pg.matmul(A[:64], B), A[:64] @ B, atol=1e-3)  # of another entry
    assert first.searched == ["ieee"] * 2
    (record,) = caplog.records
    assert "PEAKGEMM_AUTOTUNE=1" in record.message and "no torch, no CuPy" in record.message


def test_what_cannot_be_kept_holds_for_the_call(first: Device, gpu: Path) -> None:
    store.folder(GPU.name).chmod(0o777)
    assert pg.plan(A, B).config.raster == 4
    assert pg.plan(A, B).explain().source == "heuristic" and first.searched == ["ieee"]
    first.forget()
    assert [first.product().config.raster for _ in range(2)] == [4, 4]


@pytest.mark.parametrize("ieee_ms", [0.5, 2.0])
def test_emulated_outcomes_are_kept(first: Device, monkeypatch: pytest.MonkeyPatch, ieee_ms: float) -> None:
    """Tensor cores take 1 ms here, and the model always takes them."""
    considered = choose_module.candidates

    def candidates(problem: Problem, gpu: Machine, scheme: Scheme | None = None, ready: str = "") -> Sequence[Any]:
        found = considered(problem, gpu, scheme, ready)
        return found if scheme is not None else [each._replace(us=1e6) for each in found]

    monkeypatch.setattr("peakgemm.selection.choose.candidates", candidates)
    monkeypatch.setitem(globals(), "times", lambda config, default: ieee_ms if config == default else 1.0)
    expected = "specialised" if ieee_ms < 1 else "fp16x3"
    for _ in range(2):
        assert first.product(precision="emulated").kernel.name == pg.plan(A, B, precision="emulated").kernel == expected
        assert choose(Problem.contiguous(96, 96, 96), GPU.arch, GPU.sm_count, GPU.name, "emulated", "b"
                      ).kernel.name == "fp16x3"  # of an operand that is split already
        first.forget()
    assert first.searched == ["emulated"]
    assert choose(Problem.contiguous(96, 96, 96), GPU.arch, GPU.sm_count, GPU.name).source == "heuristic"


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


