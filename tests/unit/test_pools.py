"""When pools of device memory hold what they have, and when they give it back; on stand-in devices."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import pytest

from lazy_driver import Devices, await_that, present
from peakgemm.errors import LaunchFailed
from peakgemm.runtime import lanes, pools

RESTS = pools._rests  # which `present` replaces
ROOM = 64 << 30


@pytest.mark.parametrize(("room", "share"), [(ROOM, ROOM // 4), (2 << 30, pools.KEPT_BYTES)])
def test_a_call_holds_a_share_of_the_device_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch, room: int,
                                                                   share: int) -> None:
    with present(monkeypatch, Devices(2, room=room)) as devices:
        pools.pool(1)
        assert devices.threshold == {1: pools.KEPT_BYTES}
        with pools.used(1):
            with pools.used(1):
                assert devices.threshold == {1: share}
            pools.give_back(1)  # not while a call is under way
            assert devices.threshold == {1: share} and devices.trimmed == []
        assert devices.threshold == {1: share}  # the next call may want it
        pools.give_back(1)
        assert devices.threshold == {1: pools.KEPT_BYTES} and devices.trimmed == [(1, pools.KEPT_BYTES)]


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


def test_a_device_gives_it_back_though_another_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each call, and where the driver refuses once."""
    with present(monkeypatch, Devices(2, room=ROOM)) as devices:
        refused = list[str]()

        def once(name: str) -> int:
            if name != "cuMemPoolTrimTo" or refused:
                return 0
            refused.append(name)
            return 719

        def given_back(index: int, busy: int) -> bool:
            with lanes.lane(busy):
                return (index, pools.KEPT_BYTES) in devices.trimmed

        devices.fail = once
        monkeypatch.setattr(pools, "_rests", RESTS)
        monkeypatch.setattr(pools, "IDLE_SECONDS", 0.05)
        with lanes.lane(1):
            pass
        await_that(lambda: refused)
        for index, busy in ((1, 0), (0, 1)):
            devices.trimmed.clear()
            with lanes.lane(index):
                pass
            await_that(lambda index=index, busy=busy: given_back(index, busy))
            await_that(lambda: set(devices.threshold.values()) == {pools.KEPT_BYTES})


def test_a_call_ends_well_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the interpreter's end; the next call tries again."""
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with present(monkeypatch, Devices(1, room=ROOM)) as devices:
        monkeypatch.setattr(pools, "_rests", RESTS)
        monkeypatch.setattr(pools, "IDLE_SECONDS", 0.02)
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
