"""Devices, contexts, loading and launching, against a driver that only keeps a record."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from peakgemm.errors import InvalidValue, LaunchFailed, MissingComponent
from peakgemm.runtime import device, launch
from peakgemm.runtime.compile import Compiled
from peakgemm.runtime.device import Gpu

# Devices: a driver of two GPUs whose contexts are a stack of device indices


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Two GPUs and a thread without a context; what was done to contexts is in ``log``."""
    import cuda.core
    from cuda.bindings import driver

    state = SimpleNamespace(stack=[], log=[])
    ok, none = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_CONTEXT

    class Device:
        def __init__(self, index: int) -> None:
            self.device_id, self.name = index, f"GPU {index}"
            self.compute_capability = (9, 0) if index == 0 else (4, 2)
            self.properties = SimpleNamespace(multiprocessor_count=132, clock_rate=1980000, memory_clock_rate=2619000,
                                              global_memory_bus_width=5120, l2_cache_size=50 << 20)

        def set_current(self) -> None:
            state.log.append(("set", self.device_id))
            state.stack[-1:] = [self.device_id]

    def push(context: int) -> tuple:
        state.log.append(("push", context - 100))
        state.stack.append(context - 100)
        return (ok,)

    def pop() -> tuple:
        state.log.append(("pop", state.stack.pop()))
        return ok, 0

    fakes = {
        "cuInit": lambda flags: (ok,), "cuDeviceGetCount": lambda: (ok, 2), "cuDriverGetVersion": lambda: (ok, 13010),
        "cuCtxGetDevice": lambda: (ok, state.stack[-1]) if state.stack else (none, None),
        "cuCtxGetCurrent": lambda: (ok, 100 + state.stack[-1]), "cuCtxPushCurrent": push, "cuCtxPopCurrent": pop,
        "cuDevicePrimaryCtxRetain": lambda index: (ok, 100 + index),
        "cuDevicePrimaryCtxGetState": lambda index: (ok, 0, 1),
        "cuGetErrorString": lambda code: (ok, b"as told"),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(driver, name, fake)
    monkeypatch.setattr(cuda.core, "Device", Device)
    monkeypatch.setattr(device, "_thread", threading.local())
    caches = (device._count, device._probe, device._primary_context)
    for each in caches:
        each.cache_clear()
    yield state
    for each in caches:
        each.cache_clear()


def test_a_thread_without_a_context_gets_device_0(machine: SimpleNamespace) -> None:
    gpu = device.require()
    assert (gpu.index, gpu.name, gpu.arch, gpu.driver) == (0, "GPU 0", "sm_90", "13.1")
    assert machine.log == [("set", 0)]
    assert device.find() is gpu
    assert machine.log == [("set", 0)]


def test_the_callers_context_is_respected(machine: SimpleNamespace) -> None:
    machine.stack = [1]
    assert device.find() is None  # the table does not hold sm_42
    assert machine.stack == [1]
    with pytest.raises(MissingComponent, match=r"GPU 1: unknown architecture 'sm_42'"):
        device.require()


def test_a_device_by_index_touches_no_context(machine: SimpleNamespace) -> None:
    assert device.require(0).index == 0
    assert (device.current(), machine.log) == (None, [])
    machine.stack = [1]
    assert device.require(0).index == 0
    assert (device.current(), machine.log) == (1, [])


@pytest.mark.parametrize("index", [2, -1])
def test_a_device_that_is_not_there(machine: SimpleNamespace, index: int) -> None:
    assert device.find(index) is None
    with pytest.raises(MissingComponent, match=rf"no GPU {index}: this process sees 2 \(0 to 1\)"):
        device.require(index)


def test_activated_gives_the_context_back(machine: SimpleNamespace) -> None:
    machine.stack = [1]
    with pytest.raises(ZeroDivisionError), device.activated(0):
        assert device.current() == 0
        raise ZeroDivisionError
    assert machine.stack == [1]
    machine.log.clear()
    with device.activated(1):
        assert device.current() == 1
    assert machine.log == []


def test_no_driver() -> None:
    reason = device.reason_without_gpu()
    if reason is None:
        pytest.skip("there is a GPU")
    assert reason.startswith("no NVIDIA driver or GPU here (")
    assert (device.count(), device.find(0)) == (0, None)
    with pytest.raises(MissingComponent, match="no NVIDIA driver or GPU here"):
        device.require(0)


# Launches: the driver's call is a Python function that reads what it is given, as cuda.h describes it

H100 = Gpu(0, "H100", "sm_90", 132, 1980, 3352.0, 50 << 20, "13.0")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, machine: SimpleNamespace) -> SimpleNamespace:
    """What was launched, in order; ``answer()`` gives the status."""
    from cuda.bindings import driver

    seen = SimpleNamespace(made=[], answer=lambda: 0, size=0)

    def read(config: int, kernel: int, parameters: int, extra: int | None) -> int:
        status = seen.answer()  # first: others may write meanwhile
        c = driver.CUlaunchConfig(_ptr=config)
        places = (ctypes.c_uint64 * 6).from_address(parameters)
        seen.made.append(SimpleNamespace(
            grid=(c.gridDimX, c.gridDimY, c.gridDimZ), block=(c.blockDimX, c.blockDimY, c.blockDimZ),
            shared=c.sharedMemBytes, stream=int(c.hStream), attributes=c.numAttrs, kernel=kernel, extra=extra,
            addresses=[ctypes.c_uint64.from_address(p).value for p in places[:5]],
            argument=ctypes.string_at(places[5], seen.size), aligned=places[5] % 8 == 0))
        return status

    entry = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(read)
    monkeypatch.setattr(launch, "_driver_launch", lambda: entry)
    machine.stack[:] = [0]
    return seen


def launcher(argument: bytes = b"", blocks: int = 7, threads: int = 256) -> launch.Launcher:
    loaded = launch.Loaded(SimpleNamespace(handle=12345), "gemm", 70000)
    return launch.Launcher(loaded, "128x128x8", H100, blocks, threads, argument)


HIGH = 1 << 47


@pytest.mark.parametrize("size", [0, 1, 13, 200, 256])
def test_launch_layout(calls: SimpleNamespace, size: int) -> None:
    calls.size, argument = size, bytes(i % 251 + 1 for i in range(size))
    ready = launcher(argument)
    ready(HIGH + 1, HIGH + 2, HIGH + 3, HIGH + 4, HIGH + 5, HIGH + 6)
    ready(11, 12, 13, 14, 0, 0)
    first, second = calls.made
    assert (first.grid, first.block, first.shared, first.stream) == ((7, 1, 1), (256, 1, 1), 70000, HIGH + 6)
    assert (first.kernel, first.attributes, first.extra, first.aligned) == (12345, 0, None, True)
    assert first.addresses == [HIGH + i for i in range(1, 6)]  # A, B, C0, C, partial sums
    assert (second.addresses, second.stream) == ([11, 12, 13, 14, 0], 0)
    assert first.argument == second.argument == argument


def test_threads_launch_with_their_own_arguments(calls: SimpleNamespace) -> None:
    ready, together = launcher(), threading.Barrier(4)
    calls.answer = lambda: together.wait(60) * 0  # all four have written before the first is read
    threads = [threading.Thread(target=ready, args=[10 * i + j for j in range(6)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted([*call.addresses, call.stream] for call in calls.made) == [
        [10 * i + j for j in range(6)] for i in range(4)]


def test_a_thread_without_a_context_may_launch(calls: SimpleNamespace, machine: SimpleNamespace) -> None:
    machine.stack.clear()
    calls.answer = lambda: 0 if machine.stack else 201
    launcher()(1, 2, 3, 4, 5, 600)
    assert len(calls.made) == 2
    assert machine.log == [("set", 0)]
    assert calls.made[1].addresses == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("status", "name", "remedy"), [
    (1, "CUDA_ERROR_INVALID_VALUE", "peakgemm doctor"), (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "restart the process")])
def test_a_failed_launch_names_everything(calls: SimpleNamespace, status: int, name: str, remedy: str) -> None:
    calls.answer = lambda: status
    with pytest.raises(LaunchFailed) as error:
        launcher()(1, 2, 3, 4, 5, 600)
    assert len(calls.made) == 1  # there was a context: nothing to try again
    assert str(error.value).startswith("gemm (128x128x8): launch of 7 blocks of 256 threads with 70000 bytes of "
                                       f"dynamic shared memory on H100 failed: {name} (as told); ")
    assert remedy in str(error.value)


def test_a_default_stream_means_the_kernels_device(calls: SimpleNamespace, machine: SimpleNamespace) -> None:
    ready = launcher()
    machine.stack[:] = [1]
    on = []
    calls.answer = lambda: on.append(machine.stack[-1]) or 0
    for stream in (0, 1, 2, 600):  # legacy, legacy, per thread: of the current context; 600 is a stream of its own
        ready(1, 2, 3, 4, 5, stream)
    assert on == [0, 0, 0, 1]
    assert machine.stack == [1]


@pytest.mark.parametrize(("wrong", "told"), [
    ({"blocks": 0}, "0 blocks"), ({"blocks": 2**31}, "2147483648 blocks, a grid holds 1 to 2147483647"),
    ({"threads": 1025}, "1025 threads a block"), ({"threads": 0}, "0 threads a block")])
def test_grids_that_no_gpu_takes(calls: SimpleNamespace, wrong: dict, told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        launcher(**wrong)


def test_a_refused_cubin_is_made_again_once(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []

    def resident(compiled: Compiled) -> SimpleNamespace:
        tried.append(compiled.code)
        if compiled.code != b"good":
            raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")
        return SimpleNamespace(handle=1)

    def cubin(code: bytes) -> Compiled:
        return Compiled("gemm", "sm_90", "cubin", code)

    monkeypatch.setattr(launch, "_resident", resident)
    for fresh, outcome in ((cubin(b"good"), 1), (cubin(b"worse"), None), (None, None)):
        monkeypatch.setattr("peakgemm.runtime.compile.anew", lambda compiled, fresh=fresh: fresh)
        launch.load.cache_clear()
        tried.clear()
        if outcome:
            assert launch.load(cubin(b"bad"), 0, H100).handle.handle == outcome
        else:
            with pytest.raises(MissingComponent, match=r"gemm: the driver \(13\.0\) cannot load a cubin for sm_90 on "
                                                       r"H100 \(CUDA_ERROR_INVALID_IMAGE\); update"):
                launch.load(cubin(b"bad"), 0, H100)
        assert tried == [b"bad", *([fresh.code] if fresh else [])]
        assert machine.stack == []  # the caller's context, which was none, is back
    launch.load.cache_clear()


# The doctor


@pytest.mark.parametrize(("version", "verdict"), [(99000, "yes"), (11080, "old")])
def test_the_doctor_looks_at_every_gpu(machine: SimpleNamespace, capsys: pytest.CaptureFixture[str],
                                       monkeypatch: pytest.MonkeyPatch, version: int, verdict: str) -> None:
    from cuda.bindings import driver

    from peakgemm.cli import doctor

    def no_peer() -> None:
        raise MissingComponent("no cuBLAS; run: pip install 'torch[cu13]'")

    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (driver.CUresult.CUDA_SUCCESS, version))
    monkeypatch.setattr(doctor, "find_peer", no_peer)
    doctor.command()
    text = " ".join(capsys.readouterr().out.split())
    assert f"GPU and driver (run) {verdict} 0: GPU 0, sm_90, 132 SMs, driver for CUDA {version // 1000}." in text
    assert ("pip install 'peakgemm[cu12]'" in text) == (verdict == "old")
    assert "GPU and driver (run) no GPU 1: unknown architecture 'sm_42'" in text
    assert "cuBLAS (compare) no no cuBLAS; run: pip install 'torch[cu13]'" in text  # brackets are no markup


def test_the_doctor_tells_of_an_open_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    from peakgemm.cli import doctor

    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    doctor.command()
    assert "compile cache no other users may write to" in " ".join(capsys.readouterr().out.split())
