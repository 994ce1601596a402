"""Memory by stream: allocated and freed in a stream's order, arrays kept until a stream is done, streams in order.

The context of the device must be current: see `device.activated`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import Lock
from typing import Any

from ..errors import LaunchFailed
from . import device

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


def checked(answer: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call.

    Raises:
        LaunchFailed: the driver refused; the message says what.
    """
    if int(answer[0]) != 0:
        raise LaunchFailed(f"{what}: {answer[0].name}; see: peakgemm doctor")
    return answer[1] if len(answer) > 1 else None


class DeviceMemory:
    """``size`` bytes of the current device, allocated in the order of ``stream`` and freed so with the object."""

    def __init__(self, size: int, stream: int) -> None:
        from cuda.bindings import driver

        self.size, self._stream, self._index = max(size, 16), stream, device.current() or 0
        self._free = driver.cuMemFreeAsync
        self.pointer = 0
        self.pointer = int(checked(driver.cuMemAllocAsync(self.size, stream), f"{size:,} bytes of device memory"))

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            # In whatever thread lets go of it last; at the interpreter's end there may be no driver left to tell.
            with suppress(Exception), device.activated(self._index):
                self._free(self.pointer, self._stream)


class _Pending:
    """Arrays that a stream still reads, let go when later calls find it done."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, Any]] = deque()
        self._lock = Lock()

    def keep(self, arrays: Any, stream: int) -> None:
        """Hold ``arrays`` until what is enqueued on ``stream`` by now has run."""
        from cuda.bindings import driver

        mark = event(stream)
        with self._lock:
            self._waiting.append((mark, arrays))
            done = []
            while self._waiting and int(driver.cuEventQuery(self._waiting[0][0])[0]) == 0:
                done.append(self._waiting.popleft())
        for mark, _ in done:
            driver.cuEventDestroy(mark)


PENDING = _Pending()


def order(first: int, second: int) -> None:
    """What is enqueued on ``second`` from now on waits for what ``first`` holds by now."""
    from cuda.bindings import driver

    mark = event(first)
    checked(driver.cuStreamWaitEvent(second, mark, 0), "one stream waiting for another")
    driver.cuEventDestroy(mark)  # the driver frees it once the wait is over


def event(stream: int) -> Any:
    """An event after what is enqueued on ``stream`` by now."""
    from cuda.bindings import driver

    mark = checked(driver.cuEventCreate(_NO_TIMING), "an event")
    checked(driver.cuEventRecord(mark, stream), "recording an event")
    return mark


def wait(mark: Any) -> None:
    """Until the device has come to an event, which is then destroyed.

    Raises:
        LaunchFailed: something before it failed.
    """
    from cuda.bindings import driver

    checked(driver.cuEventSynchronize(mark), "the product")
    driver.cuEventDestroy(mark)
