"""Threads that wait for each other: named barriers, flags, locks, mbarriers, early exits."""

from functools import partial

import numpy as np
import pytest

from peakgemm.tools.simulator import run
from simulator_cases import FIXTURES, clean, line_of, threads, values

SOURCE = FIXTURES / "cooperation.cu"
RNG = np.random.default_rng(3)
go = partial(clean, SOURCE)


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_producer_and_consumers_with_named_barriers(rounds):
    x, out = RNG.standard_normal((rounds, 96)).astype("f4"), np.zeros(96, "f4")
    go("specialised", 1, 128, [x, out, rounds])
    np.testing.assert_allclose(out, x.sum(axis=0)[::-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("broken", ["NO_EMPTY", "NO_FULL"])
def test_missing_half_of_the_handshake_is_found(broken):
    """A side that runs ahead races, reads what nobody wrote, or arrives once too often and leaves the other waiting."""
    x, out = RNG.standard_normal((7, 96)).astype("f4"), np.zeros(96, "f4")
    report = run(SOURCE, entry="specialised", grid=1, block=128, args=[x, out, 7], macros={broken: 1})
    assert {"shared_race", "shared_unwritten", "deadlock"} & {fault.kind for fault in report.faults}, str(report)


def test_an_endless_kernel_is_stopped_with_its_hot_lines():
    report = run(SOURCE, entry="endless", grid=1, block=1, args=[np.zeros(2, "i4")], max_steps=5_000)
    assert "max_steps" in report.stopped and report.faults[-1].kind == "never_ending"
    assert f"cooperation.cu:{line_of('while (out[0] >= 0)', 'cooperation.cu')}" in report.faults[-1].message


SHARED = ".shared .align 16 .b8 s[64]; mov.u32 %r1, s; mov.u32 %r9, 5;"


@pytest.mark.parametrize("store", ["st.volatile.shared.u32 [%r1], %r3;", "st.relaxed.cta.shared.u32 [%r1], %r3;",
                                   "st.release.cta.shared::cta.u32 [%r1], %r3;"])
@pytest.mark.parametrize("load", ["ld.shared.u32 %r9, [%r1];", "ld.volatile.shared.u32 %r9, [%r1];",
                                  "ld.acquire.cta.shared.u32 %r9, [%r1];"])
def test_what_a_strong_store_writes_is_written(store, load):
    assert values(f"{SHARED} mov.u32 %r3, 9; {store} {load}") == [9]


def test_a_strong_load_reads_and_writes_nothing():
    report, _ = threads(f"{SHARED} ld.volatile.shared.u32 %r9, [%r1]; ld.shared.u32 %r8, [%r1];")
    assert [fault.kind for fault in report.faults] == ["shared_unwritten"] * 2, str(report)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_mbarrier_phases(rounds):
    x, out = RNG.standard_normal((rounds, 32)).astype("f4"), np.zeros(32, "f4")
    go("phases", 1, 64, [x, out, rounds])
    np.testing.assert_allclose(out, x.sum(axis=0)[::-1], rtol=1e-5, atol=1e-5)


def test_barrier_votes():
    x, out = RNG.integers(-1, 8, 128).astype("i4"), np.zeros(128, "i4")
    for low in (-1, 1):
        x = np.maximum(x, low)
        go("vote", 1, 128, [x, out])
        assert (out == (x > 0).all() * 1000000 + (x > 5).any() * 100000 + (x > 3).sum()).all()


def test_divergence_and_local_memory():
    x, out = np.arange(100).astype("i4"), np.zeros(100, "i4")
    report = go("diverge", 1, 100, [x, out])

    def reference(v):
        total = 0
        for i in range(v):
            total = total + i if i % 3 == 0 else total - 2 * i if i % 3 == 1 else total ^ i
        cases = {0: lambda s: s + 11, 1: lambda s: s * 3, 2: lambda s: s - 7, 3: lambda s: s ^ 21,
                 4: lambda s: s + int(s / 3), 5: lambda s: -s}
        total = cases.get(v & 7, lambda s: s - 13 * int(s / 13))(total)
        return total + v * (v & 7)

    assert list(out) == [reference(v) for v in range(100)]
    assert report.counters["divergent_branches"] > 0


def test_results_do_not_depend_on_the_batches(monkeypatch):
    from peakgemm.tools.simulator import launch

    results = []
    for most in (1024, 64):
        monkeypatch.setattr(launch, "MOST", most)
        monkeypatch.setattr(launch, "LEAST", 64)
        x, out = np.linspace(0, 1, 5000).astype("f4"), np.zeros(1, "f4")
        report = run(FIXTURES / "foreign.cu", entry="reduce", grid=7, block=96, args=[x, out, 5000])
        results.append((out[0], report.counters))
    assert results[0] == results[1]


def test_runs_in_parallel_threads_do_not_disturb_each_other():
    from concurrent.futures import ThreadPoolExecutor

    def one(seed):
        x, out = np.random.default_rng(seed).standard_normal(3000).astype("f4"), np.zeros(1, "f4")
        report = run(FIXTURES / "foreign.cu", entry="reduce", grid=5, block=64, args=[x, out, 3000])
        return out[0], report.counters["lane_instructions"]

    alone = [one(seed) for seed in range(6)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(6))) == alone
