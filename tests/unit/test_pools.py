"""When pools of device memory hold what they have, and when they give it back; on stand-in devices."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import numpy as np
import pytest

from lazy_driver import Devices, present
from peakgemm.calls.host import multi_gpu
from peakgemm.calls.host.grid import Grid, cuts
from peakgemm.calls.request import Request
from peakgemm.errors import LaunchFailed
from peakgemm.runtime import lanes, pools

RESTS = pools._rests
ROOM = 64 << 30


def test_a_call_holds_a_share_of_the_device_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(2, room=ROOM)) as devices:
        pools.pool(1)
        assert devices.threshold == {1: pools.KEPT_BYTES}
        with pools.used(1):
            assert devices.threshold == {1: ROOM // 4}
            with pools.used(1):
                pass
            pools.give_back(1)  # not while a call is under way
            assert devices.threshold == {1: ROOM // 4} and devices.trimmed == []
        assert devices.threshold == {1: ROOM // 4}  # the next call may want it
        pools.give_back(1)
        assert devices.threshold == {1: pools.KEPT_BYTES} and devices.trimmed == [(1, pools.KEPT_BYTES)]


def test_allocations_do_not_wait_for_memory_that_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
        there, meanwhile = pools.pool(0), list[int]()

        def fail(name: str) -> int:
            if name == "cuMemPoolTrimTo":
                other = threading.Thread(target=lambda: meanwhile.append(pools.pool(0)), daemon=True)
                other.start()
                other.join(10)
            return 0

        devices.fail = fail
        pools.give_back(0)
        assert meanwhile == [there]


@pytest.mark.parametrize("call", ["cuMemPoolCreate", "cuMemPoolSetAttribute", "cuDeviceTotalMem_v2"])
def test_a_call_that_is_refused_is_not_under_way(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Else the device's memory would never be given back."""
    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
        for before in (False, True):
            if before:
                pools.pool(0)
            if not (before and call == "cuMemPoolCreate"):
                devices.fail = lambda name: 719 * (name == call)
                with pytest.raises(LaunchFailed), pools.used(0):
                    pytest.fail("not refused")
                devices.fail = lambda name: 0
            with pools.used(0):
                pass
            pools.give_back(0)
            assert devices.trimmed.pop() == (0, pools.KEPT_BYTES)


def test_a_small_device_holds_no_less_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(1, room=2 << 30)) as devices, pools.used(0):
        assert devices.threshold == {0: pools.KEPT_BYTES}


def test_products_of_host_arrays_give_it_back_when_no_other_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.ones((40, 40), np.float32)
    with present(monkeypatch, Devices(2, room=ROOM)) as devices:
        given, trim = threading.Semaphore(0), Devices._cuMemPoolTrimTo

        def trimmed(self: Devices, pool: int, size: int) -> None:
            trim(self, pool, size)
            given.release()

        monkeypatch.setattr(Devices, "_cuMemPoolTrimTo", trimmed)
        monkeypatch.setattr(pools, "_rests", RESTS)
        monkeypatch.setattr(pools, "IDLE_SECONDS", 0.05)
        for _ in range(2):
            multi_gpu.run(Request(a, a, out=np.empty_like(a)), devices.gpus, Grid(cuts(40, 16), cuts(40, 16)))
            assert given.acquire(timeout=20) and given.acquire(timeout=20)
            assert sorted(devices.trimmed) == [(0, pools.KEPT_BYTES), (1, pools.KEPT_BYTES)]
            assert set(devices.threshold.values()) == {pools.KEPT_BYTES}
            devices.trimmed.clear()


def test_a_device_gives_it_back_though_another_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(2, room=ROOM)) as devices:
        monkeypatch.setattr(pools, "_rests", RESTS)
        monkeypatch.setattr(pools, "IDLE_SECONDS", 0.2)
        with lanes.lane(1):
            pass
        end = time.monotonic() + 20
        while not devices.trimmed and time.monotonic() < end:
            with lanes.lane(0):
                time.sleep(0.01)
        assert (1, pools.KEPT_BYTES) in devices.trimmed
        while (0, pools.KEPT_BYTES) not in devices.trimmed and time.monotonic() < end:  # before the test's devices go
            time.sleep(0.01)


def test_a_call_ends_well_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the interpreter's end; the next call tries again."""
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
        monkeypatch.setattr(pools, "_rests", RESTS)
        monkeypatch.setattr(pools, "_tidying", None)
        monkeypatch.setattr(pools, "_rested", SimpleQueue())
        monkeypatch.setattr(pools, "IDLE_SECONDS", 0.02)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with lanes.lane(0):
                pass
        assert devices.trimmed == []
        with lanes.lane(0):
            pass
        end = time.monotonic() + 20
        while not devices.trimmed and time.monotonic() < end:
            time.sleep(0.01)
        assert devices.trimmed[0] == (0, pools.KEPT_BYTES)


def test_what_the_driver_refuses_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
        tried = threading.Semaphore(0)

        def fail(name: str) -> int:
            if name == "cuMemPoolTrimTo":
                tried.release()
                return 719
            return 0

        devices.fail = fail
        monkeypatch.setattr(pools, "_rests", RESTS)
        monkeypatch.setattr(pools, "IDLE_SECONDS", 0.02)
        for _ in range(2):
            with lanes.lane(0):
                pass
            assert tried.acquire(timeout=20)
        assert pools._tidying is not None and pools._tidying.is_alive()
