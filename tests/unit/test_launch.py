"""Devices, contexts, loading and launching, against a driver that only keeps a record."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from peakgemm.errors import InvalidValue, LaunchFailed, MissingComponent
from peakgemm.kernels.bound import room, shared_bytes
from peakgemm.kernels.registry import rung
from peakgemm.problem import Problem
from peakgemm.runtime import device, driver, launch
from peakgemm.runtime.compile import Compiled
from peakgemm.runtime.device import Gpu
from peakgemm.runtime.tensor_map import Box

# Devices: a driver of two GPUs whose contexts are a stack of device indices


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Two GPUs and a thread without a context; ``log`` has what was done to contexts, ``calls`` the driver's calls."""
    import cuda.core

    attributes = [{75: 9, 76: 0}, {75: 4, 76: 2}]  # compute capability; all others alike
    common = {16: 132, 13: 1980000, 36: 2619000, 37: 5120, 38: 50 << 20}
    state = SimpleNamespace(stack=[], log=[], version=13010, loaded={}, unloaded=[])

    def put(place: Any, value: int) -> int:
        place._obj.value = value  # what ctypes.byref points to
        return 0

    def push(context: Any) -> None:
        state.stack.append(context.value - 100)

    def switch(context: Any) -> None:
        state.log.append(("set", context.value - 100))
        state.stack[-1:] = [context.value - 100]

    def load(place: Any, code: bytes, *options: Any) -> int:
        if code != b"good":
            return 200
        state.loaded[len(state.loaded) + 900] = code
        return put(place, max(state.loaded))

    errors = {1: "CUDA_ERROR_INVALID_VALUE", 200: "CUDA_ERROR_INVALID_IMAGE", 500: "CUDA_ERROR_NOT_FOUND",
              700: "CUDA_ERROR_ILLEGAL_ADDRESS"}
    state.calls = SimpleNamespace(
        cuInit=lambda flags: 0, cuDeviceGetCount=lambda place: put(place, 2),
        cuDriverGetVersion=lambda place: put(place, state.version), cuDeviceGet=put,
        cuDeviceGetName=lambda buffer, size, index: setattr(buffer, "value", f"GPU {index}".encode()),
        cuDeviceGetAttribute=lambda place, kind, index: put(place, (attributes[index] | common)[kind]),
        cuCtxGetDevice=lambda place: put(place, state.stack[-1]) if state.stack else 201,
        cuCtxGetCurrent=lambda place: put(place, 100 + state.stack[-1]) if state.stack else put(place, None),
        cuCtxSetCurrent=switch, cuCtxPushCurrent_v2=push, cuCtxPopCurrent_v2=lambda place: state.stack.pop() * 0,
        cuDevicePrimaryCtxRetain=lambda place, index: put(place, 100 + index),
        cuLibraryLoadData=load, cuLibraryUnload=lambda library: state.unloaded.append(library.value) or 0,
        cuLibraryGetKernel=lambda place, library, entry: put(place, 12345) if entry == b"gemm" else 500,
        cuKernelGetFunction=lambda place, kernel: put(place, kernel.value),
        cuKernelSetAttribute=lambda *_: 0,
        cuGetErrorName=lambda status, place: put(place, errors[status].encode()) if status in errors else 1,
        cuGetErrorString=lambda status, place: put(place, b"as told"))
    monkeypatch.setattr(driver, "library", lambda: state.calls)
    monkeypatch.setattr(cuda.core, "Device", lambda index: SimpleNamespace(
        set_current=lambda: state.log.append(("introduced", index))))
    caches = (device._count, device._probe, device.primary_context, launch.load)
    for each in caches:
        each.cache_clear()
    yield state
    for each in caches:
        each.cache_clear()


def test_a_thread_without_a_context_gets_device_0(machine: SimpleNamespace) -> None:
    gpu = device.require()
    assert gpu == Gpu(0, "GPU 0", "sm_90", 132, 1980, 3352.3, 50 << 20, "13.1")
    assert device.find() is gpu and machine.log == [("set", 0)]
    device.introduce(0)
    machine.stack = [1]  # a context that is not the primary one of device 0 stays
    device.introduce(0)
    assert machine.log == [("set", 0), ("introduced", 0)] and machine.stack == [1]
    assert device.find() is None  # the table does not hold sm_42
    with pytest.raises(MissingComponent, match=r"GPU 1: unknown architecture 'sm_42'"):
        device.require()
    for index in (2, -1):
        assert device.find(index) is None
        with pytest.raises(MissingComponent, match=rf"no GPU {index}: this process sees 2 \(0 to 1\)"):
            device.require(index)


def test_activated_gives_the_context_back(machine: SimpleNamespace) -> None:
    machine.stack = [1]
    for index, stack in ((0, [1, 0]), (1, [1])):
        with pytest.raises(ZeroDivisionError), device.activated(index):
            assert device.current() == index and machine.stack == stack
            raise ZeroDivisionError
        assert machine.stack == [1]


def test_a_driver_that_fails(machine: SimpleNamespace) -> None:
    machine.calls.cuDeviceGetName = lambda *args: 700
    with pytest.raises(MissingComponent, match=r"GPU 0 does not answer \(CUDA_ERROR_ILLEGAL_ADDRESS \(as told\)\)"):
        device.require(0)
    machine.calls.cuCtxPushCurrent_v2 = lambda context: 1
    with pytest.raises(LaunchFailed, match=r"GPU 1: .* made current"), device.activated(1):
        pass
    del machine.calls.cuCtxSetCurrent
    with pytest.raises(LaunchFailed, match="the driver is older than CUDA 12: it has no cuCtxSetCurrent"):
        device.make_current(0)
    device._count.cache_clear()
    machine.calls.cuInit = lambda flags: 999
    assert device.reason_without_gpu() == ("no NVIDIA driver or GPU here (CUDA error 999); install the driver, then "
                                           "see: peakgemm doctor")


@pytest.mark.skipif(device.reason_without_gpu() is None, reason="there is a GPU")
def test_no_driver() -> None:
    assert (device.count(), device.find(0)) == (0, None)
    with pytest.raises(MissingComponent, match="no NVIDIA driver or GPU here"):
        device.require(0)


# Launches: the driver's call is a Python function that reads what it is given, as cuda.h describes it

H100 = Gpu(0, "H100", "sm_90", 132, 1980, 3352.0, 50 << 20, "13.0")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, machine: SimpleNamespace) -> SimpleNamespace:
    """What was launched, in order, with parameters of ``kinds``; ``answer()`` gives the status."""
    from cuda.bindings import driver as bindings

    seen = SimpleNamespace(made=[], answer=lambda: 0, kinds=[ctypes.c_uint64] * 5)

    def read(config: int, kernel: int, parameters: int, extra: int | None) -> int:
        status = seen.answer()  # first: others may write meanwhile
        c = bindings.CUlaunchConfig(_ptr=config)
        pointers = (ctypes.c_uint64 * len(seen.kinds)).from_address(parameters)
        start = ctypes.c_uint64.from_address(config + 40).value
        first, second = (bindings.CUlaunchAttribute(_ptr=start + at) for at in (0, 72))
        values = [kind.from_address(at) for kind, at in zip(seen.kinds, pointers, strict=True)]
        seen.made.append(SimpleNamespace(
            grid=(c.gridDimX, c.gridDimY, c.gridDimZ), block=(c.blockDimX, c.blockDimY, c.blockDimZ),
            shared=c.sharedMemBytes, stream=int(c.hStream), kernel=kernel, extra=extra,
            attributes=(c.numAttrs, int(first.id), first.value.programmaticStreamSerializationAllowed),
            cluster=(int(second.id), second.value.clusterDim.x, second.value.clusterDim.y, second.value.clusterDim.z),
            values=[bytes(x) if isinstance(x, ctypes.Array) else x.value for x in values],
            aligned=all(at % 8 == 0 for at in pointers[5:])))
        return status

    entry = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(read)
    monkeypatch.setattr(launch, "_driver_launch", lambda: (entry, entry))
    # A tensor map is what it was made of, sixteen times.
    monkeypatch.setattr(
        launch, "_map", lambda box, address: (ctypes.c_uint64 * 16)(*[1000 * box.operand + address] * 16))
    machine.stack[:] = [0]
    return seen


def launcher(argument: bytes = b"", blocks: int = 7, threads: int = 256, label: str = "128x128x8", **more: Any) -> Any:
    """A kernel, ready to be launched."""
    return launch.Launcher(launch.Loaded(SimpleNamespace(handle=12345), "gemm", 70000), label, H100, blocks, threads,
                           argument, **more)


HIGH = 1 << 47


@pytest.mark.parametrize("size", [0, 13, 256])
def test_launch_layout(calls: SimpleNamespace, size: int) -> None:
    """Maps are of each call's own addresses, behind what the kernel takes by value."""
    argument, boxes = bytes(i % 251 + 1 for i in range(size)), (Box(0, 8, 64, 64, 8, 32), Box(1, 8, 32, 32, 8, 32))
    calls.kinds += [ctypes.c_char * size, *[ctypes.c_uint64 * 16] * 2]
    ready = launcher(argument, boxes=boxes)
    ready.enqueue(HIGH + 1, HIGH + 2, HIGH + 3, HIGH + 4, HIGH + 5, HIGH + 6)
    ready.enqueue(11, 12, 13, 14, 0, 0)
    first, second = calls.made
    assert (first.grid, first.block, first.shared, first.stream) == ((7, 1, 1), (256, 1, 1), 70000, HIGH + 6)
    assert (first.kernel, first.extra, first.aligned) == (12345, None, True)
    assert first.attributes == second.attributes == (1, 6, 1)  # one: ..._PROGRAMMATIC_STREAM_SERIALIZATION, allowed
    assert first.values[:5] == [HIGH + i for i in range(1, 6)]  # A, B, C0, C, partial sums
    assert (second.values[:5], second.stream) == ([11, 12, 13, 14, 0], 0)
    for made, maps in ((first, (HIGH + 1, HIGH + 1002)), (second, (11, 1012))):
        assert made.values[5:] == [argument, *(bytes(ctypes.c_uint64(x)) * 16 for x in maps)]


def test_the_parameters_of_a_rung_and_clusters(calls: SimpleNamespace) -> None:
    """A, B, C, eight numbers and two maps; its blocks do not wait for the kernel ahead, so none may start early."""
    problem = Problem(1000, 600, 40, 44, 608, 600, 0.5, 1e-40)
    made, = rung(15).launches(replace(rung(15).default, aligned=True), problem, "sm_90", 132).kernels
    calls.kinds = [*[ctypes.c_uint64] * 3, *[ctypes.c_int] * 3, *[ctypes.c_longlong] * 3, *[ctypes.c_float] * 2,
                   *[ctypes.c_uint64] * 2]
    launcher(made.arguments, made.blocks, made.threads, boxes=made.boxes, convention=made.convention).enqueue(
        HIGH + 16, HIGH + 32, HIGH + 48, HIGH + 64, 0, 600)
    assert calls.made[0].values == [HIGH + 16, HIGH + 32, HIGH + 64, 1000, 600, 40, 44, 608, 600, 0.5,
                                    ctypes.c_float(1e-40).value, HIGH + 16, HIGH + 1032]
    assert calls.made[0].attributes == (1, 6, 0)
    calls.kinds = [ctypes.c_uint64] * 5
    launcher(cluster=8).enqueue(1, 2, 3, 4, 5, 600)
    assert calls.made[1].attributes == (2, 6, 1) and calls.made[1].cluster == (4, 8, 1, 1)


def test_a_launch_keeps_the_interpreter_where_its_thread_does(calls: SimpleNamespace) -> None:
    ready, made = launcher(), list[str]()
    ready._launches = tuple(lambda *to, name=name: made.append(name) for name in ("lets go", "keeps"))
    ready.enqueue(1, 2, 3, 4, 5, 6)
    with driver.hold_gil():
        ready.enqueue(1, 2, 3, 4, 5, 6)
    assert made == ["lets go", "keeps"]


@pytest.mark.parametrize("wanted", [0, 20000])
@pytest.mark.parametrize("most", [1, 4, 12])
@pytest.mark.parametrize(("arch", "early"), [("sm_80", False), ("sm_90", True)])
def test_no_sm_has_room_for_more_than_its_share_of_blocks(arch: str, early: bool, most: int, wanted: int) -> None:
    """Where a kernel may start early its blocks would gather on the SMs that are free first."""
    gpu = replace(H100, arch=arch)
    limits = gpu.limits

    def room(asked: int) -> int:  # of an SM, by shared memory
        unit = limits.shared_granularity
        return limits.shared_per_sm // (-(-asked // unit) * unit + limits.shared_reserved)

    for blocks in range(1, 132 * (most + 2), 17):
        asked, share = shared_bytes(wanted, blocks, most, gpu), -(-blocks // 132)
        assert wanted <= asked <= limits.shared_per_block
        if early and share < most:
            assert room(asked) == min(share, room(wanted))
            assert asked == wanted or room(asked + 512) == share  # static shared memory
        else:
            assert asked == wanted


@pytest.mark.parametrize(("registers", "threads", "blocks"), [
    (63, 256, 4), (64, 256, 4), (65, 256, 3), (80, 256, 3), (96, 192, 3), (30, 128, 16), (16, 128, 16), (None, 1024, 2),
    (168, 384, 1), (32, 96, 21),
])
def test_an_sm_has_room_by_registers_and_threads(registers: int | None, threads: int, blocks: int) -> None:
    assert room(registers, threads, H100) == blocks


def test_threads_launch_with_their_own_arguments(calls: SimpleNamespace) -> None:
    ready, together = launcher().enqueue, threading.Barrier(4)
    calls.answer = lambda: together.wait(60) * 0  # all four have written before the first is read
    threads = [threading.Thread(target=ready, args=[10 * i + j for j in range(6)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted([*call.values, call.stream] for call in calls.made) == [
        [10 * i + j for j in range(6)] for i in range(4)]


@pytest.mark.parametrize(("boxes", "tries"), [((), 2), ((Box(0, 8, 64, 64, 8, 32),), 1)])
def test_a_thread_without_a_context_may_launch(calls: SimpleNamespace, machine: SimpleNamespace, boxes: Any,
                                               tries: int) -> None:
    machine.stack.clear()
    calls.answer = lambda: 0 if machine.stack else 201
    launcher(boxes=boxes).enqueue(1, 2, 3, 4, 5, 600)
    assert len(calls.made) == tries and machine.log == [("set", 0)]
    assert calls.made[-1].values == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("status", "name", "remedy"), [
    (1, "CUDA_ERROR_INVALID_VALUE", "peakgemm doctor"), (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "restart the process")])
def test_a_failed_launch_names_everything(calls: SimpleNamespace, status: int, name: str, remedy: str) -> None:
    calls.answer = lambda: status
    with pytest.raises(LaunchFailed) as error:
        launcher().enqueue(1, 2, 3, 4, 5, 600)
    assert len(calls.made) == 1  # there was a context: nothing to try again
    assert str(error.value).startswith("gemm (128x128x8): launch of 7 blocks of 256 threads with 70000 bytes of "
                                       f"dynamic shared memory on H100 failed: {name} (as told); ")
    assert remedy in str(error.value)


def test_a_default_stream_means_the_kernels_device(calls: SimpleNamespace, machine: SimpleNamespace) -> None:
    ready = launcher().enqueue
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


def cubin(code: bytes, entry: str = "gemm") -> Compiled:
    return Compiled(entry, "sm_90", "cubin", code)


@pytest.mark.parametrize("fresh", [b"good", b"worse", None])
def test_a_refused_cubin_is_made_again_once(machine: SimpleNamespace, fresh: bytes | None) -> None:
    """None: this process compiled it."""
    made: list[Compiled] = []
    bad = replace(cubin(b"bad"), remake=None if fresh is None else lambda: made.append(cubin(fresh)) or made[-1])
    if fresh == b"good":
        assert launch.load(bad, 0, H100).kernel.handle == 12345
    else:
        with pytest.raises(MissingComponent, match=r"gemm: the driver \(13\.0\) cannot load a cubin for sm_90 on "
                                                   r"H100 \(CUDA_ERROR_INVALID_IMAGE \(as told\)\); update"):
            launch.load(bad, 0, H100)
    assert len(made) == (fresh is not None)
    assert machine.stack == []  # the caller's context, which was none, is back


def test_code_leaves_the_device_with_the_last_reference(machine: SimpleNamespace) -> None:
    loaded = launch.load(cubin(b"good"), 70000, H100)
    assert (loaded.kernel.handle, loaded.shared_bytes, machine.unloaded) == (12345, 70000, [])
    launch.load.cache_clear()
    assert machine.unloaded == []
    del loaded
    assert machine.unloaded == [900]
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NOT_FOUND"):
        launch.Resident(cubin(b"good", "other"))
    assert machine.unloaded == [900, 901]  # a library without the kernel does not stay
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_IMAGE"):
        launch.Resident(cubin(b"bad"))
    assert machine.unloaded == [900, 901]


@pytest.mark.parametrize(("static", "dynamic", "cluster", "wanted"), [
    (0, 48 << 10, 1, []), (0, 50000, 1, [(8, 50000)]), (8192, 41000, 8, [(8, 41000)]), (0, 0, 16, [(14, 1)])])
def test_what_the_driver_is_asked_for(machine: SimpleNamespace, static: int, dynamic: int, cluster: int,
                                      wanted: list[tuple[int, int]]) -> None:
    """More than 48 KB of static and dynamic shared memory together, and more than the 8 blocks that each GPU's clusters
    have: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES and NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""
    asked = list[tuple[int, int]]()
    machine.calls.cuKernelSetAttribute = lambda kind, value, *_: asked.append((kind, value)) or 0
    launch.load(replace(cubin(b"good"), static_shared=static), dynamic, H100, cluster)
    assert asked == wanted
    machine.calls.cuKernelSetAttribute = lambda *_: 1
    launch.load.cache_clear()
    says = f"a cluster of {cluster} blocks on H100: .*; use 8 at" if cluster > 8 else f"{dynamic} bytes.*232448 there"
    with pytest.raises(LaunchFailed, match=says) if wanted else nullcontext():
        launch.load(replace(cubin(b"good"), static_shared=static), dynamic, H100, cluster)


def test_code_is_loaded_without_the_interpreter(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """That may wait for what a user's stream holds, and a callback there wants the interpreter."""
    monkeypatch.setattr(driver, "gil_library", lambda: pytest.fail("keeps the interpreter"))
    with driver.hold_gil():
        loaded = launch.load(cubin(b"good"), 70000, H100)
        assert driver.holds_gil()
        launch.load.cache_clear()
        del loaded
    assert machine.unloaded == [900]


# The doctor


@pytest.mark.parametrize(("version", "verdict"), [(99000, "yes"), (11080, "old")])
def test_the_doctor_looks_at_every_gpu(machine: SimpleNamespace, capsys: pytest.CaptureFixture[str],
                                       monkeypatch: pytest.MonkeyPatch, version: int, verdict: str) -> None:
    from peakgemm.cli import doctor

    def no_peer() -> None:
        raise MissingComponent("no cuBLAS; run: pip install 'torch[cu13]'")

    machine.version = version
    monkeypatch.setattr(doctor, "find_peer", no_peer)
    doctor.command()
    text = " ".join(capsys.readouterr().out.split())
    assert f"GPU and driver (run) {verdict} 0: GPU 0, sm_90, 132 SMs, driver for CUDA {version // 1000}." in text
    assert ("pip install 'peakgemm[cu12]'" in text) == (verdict == "old")
    assert "GPU and driver (run) no GPU 1: unknown architecture 'sm_42'" in text
    assert "cuBLAS (compare) no no cuBLAS; run: pip install 'torch[cu13]'" in text  # brackets are no markup
