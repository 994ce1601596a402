"""When pools of device memory hold what they have, and when they give it back; on stand-in devices."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import numpy as np
import pytest

from lazy_driver import Devices, await_that, present
from peakgemm.calls.host import multi_gpu
from peakgemm.calls.host.grid import Grid, cuts
from peakgemm.calls.request import Request
from peakgemm.errors import LaunchFailed
from peakgemm.runtime import lanes, pools

RESTS = pools._rests
ROOM = 64 << 30


def tidying(monkeypatch: pytest.MonkeyPatch, idle: float) -> None:
    """From now on a thread gives memory back ``idle`` seconds behind a call, as the library's does."""
    monkeypatch.setattr(pools, "_rests", RESTS)
    monkeypatch.setattr(pools, "IDLE_SECONDS", idle)


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


def test_a_small_device_holds_no_less_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(1, room=2 << 30)) as devices, pools.used(0):
        assert devices.threshold == {0: pools.KEPT_BYTES}


def test_threads_that_come_first_together_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory in another one than is kept could not be read by other devices."""
    calls, made = list[str](), list[int]()
    with present(monkeypatch, Devices(1)) as devices:
        def slow(name: str) -> int:
            calls.append(name)
            devices.lock.release()
            time.sleep(0.05)
            devices.lock.acquire()
            return 0

        devices.fail = slow
        threads = [threading.Thread(target=lambda: made.append(pools.pool(0))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls.count("cuMemPoolCreate") == 1 and len(set(made)) == 1


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


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("call", ["cuMemPoolCreate", "cuMemPoolSetAttribute", "cuDeviceTotalMem_v2"])
def test_a_call_that_is_refused_is_not_under_way(monkeypatch: pytest.MonkeyPatch, call: str, before: bool) -> None:
    """Else the device's memory would never be given back. ``before``: its pool is there."""
    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
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
        assert devices.trimmed == [(0, pools.KEPT_BYTES)]


def test_products_of_host_arrays_give_it_back_when_no_other_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.ones((40, 40), np.float32)
    with present(monkeypatch, Devices(2, room=ROOM)) as devices:
        tidying(monkeypatch, 0.05)
        for _ in range(2):
            multi_gpu.run(Request(a, a, out=np.empty_like(a)), devices.gpus, Grid(cuts(40, 16), cuts(40, 16)))
            await_that(lambda: len(devices.trimmed) == 2)
            assert sorted(devices.trimmed) == [(0, pools.KEPT_BYTES), (1, pools.KEPT_BYTES)]
            assert set(devices.threshold.values()) == {pools.KEPT_BYTES}
            devices.trimmed.clear()


def test_a_device_gives_it_back_though_another_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(2, room=ROOM)) as devices:
        def used() -> bool:
            with lanes.lane(0):
                return bool(devices.trimmed)

        tidying(monkeypatch, 0.2)
        with lanes.lane(1):
            pass
        await_that(used)
        assert (1, pools.KEPT_BYTES) in devices.trimmed
        await_that(lambda: (0, pools.KEPT_BYTES) in devices.trimmed)  # before the test's devices go


def test_a_call_ends_well_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the interpreter's end; the next call tries again."""
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
        tidying(monkeypatch, 0.02)
        monkeypatch.setattr(pools, "_tidying", None)
        monkeypatch.setattr(pools, "_rested", SimpleQueue())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with lanes.lane(0):
                pass
        assert devices.trimmed == []
        with lanes.lane(0):
            pass
        await_that(lambda: devices.trimmed)
        assert devices.trimmed[0] == (0, pools.KEPT_BYTES)


def test_what_the_driver_refuses_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
        tried = list[str]()

        def fail(name: str) -> int:
            tried.extend([name] * (name == "cuMemPoolTrimTo"))
            return 719 * (name == "cuMemPoolTrimTo")

        devices.fail = fail
        tidying(monkeypatch, 0.02)
        for count in (1, 2):
            with lanes.lane(0):
                pass
            await_that(lambda count=count: len(tried) == count)
        assert pools._tidying is not None and pools._tidying.is_alive()
