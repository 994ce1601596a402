"""Where no room is left for a workspace or a split operand: who says so, what the error tells, and who catches it."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lazy_driver
import peakgemm as pg
import stand_in
from peakgemm import arrays
from peakgemm.calls import launch, plan, prepared
from peakgemm.calls.canonical import Canonical
from peakgemm.calls.host import small_host, worker
from peakgemm.calls.request import Request
from peakgemm.errors import InvalidValue, LaunchFailed, OutOfMemory
from peakgemm.kernels.emulated import product as emulated
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.problem import Problem
from peakgemm.runtime import driver
from peakgemm.selection.choose import Choice

FP16X3, PROBLEM = emulated.PRODUCTS["fp16x3"], Problem.contiguous(300, 200, 500)
NAMED, PARTIAL = Choice(FP16X3, FP16X3.default, "", ""), Choice(SPECIALISED, SPECIALISED.default, "", "")
WANTED = launch.workspace_bytes(NAMED, PROBLEM, stand_in.GPU)
A, B = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((300, 500), (500, 200)))
FREE = "GPU 0 has 12,345,678 of 85,899,345,920 bytes free beside what stand-in holds; "


class Full(MemoryError):
    """A library's own error, made of figures as CuPy's is."""

    def __init__(self, size: int, total: int) -> None:
        super().__init__(f"{size} of {total} bytes")


class FullLibrary(stand_in.StandIn):
    """Gives results, but no memory of one dimension; ``error`` instead."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def empty(self, shape: tuple[int, ...], like: Any, stream: int) -> Any:
        if len(shape) == 1:
            raise self.error
        return super().empty(shape, like, stream)

    def out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, Full)


class Hungry(stand_in.Interpreted):
    """A bound kernel with a workspace."""

    def __init__(self, problem: Problem, memory: Any, choice: Choice = NAMED, wanted: int = WANTED) -> None:
        super().__init__(problem, memory)
        self.kernel, self.config, self.workspace_bytes = choice.kernel, choice.config, wanted


@pytest.fixture(params=[Full(1, 2), ValueError("an illegal address was met")], ids=["full", "another error"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FullLibrary:
    """NumPy's arrays are on a GPU that has 12,345,678 bytes free."""
    def info(call: str, free: Any, total: Any) -> None:
        assert call == "cuMemGetInfo_v2"
        free._obj.value, total._obj.value = 12_345_678, 80 << 30

    monkeypatch.setattr(launch.device, "require", lambda index: stand_in.GPU)
    monkeypatch.setattr(launch.device, "activated", lambda index: nullcontext())
    monkeypatch.setattr(launch.device, "count", lambda: 0)
    monkeypatch.setattr(driver, "check", info)
    full = FullLibrary(request.param)
    monkeypatch.setitem(arrays._BY_TYPE, np.ndarray, full)
    return full


def refused(library: FullLibrary, says: str, call: Any) -> None:
    """The library's error as `OutOfMemory`, which is of its class too; another error as it is."""
    with pytest.raises(type(library.error)) as caught:
        call()
    error = caught.value
    if isinstance(library.error, Full):
        assert isinstance(error, OutOfMemory) and error.__cause__ is library.error and str(error) == says
    else:
        assert error is library.error


@pytest.mark.parametrize(("choice", "wanted", "by", "remedies"), [
    (NAMED, WANTED, "fp16x3", "use precision='ieee', which does without, or split a constant b once, with "
     "peakgemm.prepare, or pass"),
    (NAMED, WANTED // 2, "fp16x3", "use precision='ieee', which does without, or pass"),  # b was split before
    (PARTIAL, 4096, "specialised", "pass")])
def test_a_workspace(library: FullLibrary, monkeypatch: pytest.MonkeyPatch, choice: Choice, wanted: int, by: str,
                     remedies: str) -> None:
    """The remedies are those that help; to bring memory is one."""
    monkeypatch.setattr(plan, "choice_for", lambda problem, gpu, precision: choice)
    for module in (plan, launch):
        monkeypatch.setattr(module, "bound_for",
                            lambda problem, gpu, _=None: Hungry(problem, library.memory, choice, wanted))
    made = plan.Plan(Request(A, B, precision="fp16x3"))
    refused(library, f"a workspace of {wanted:,} bytes for 300 x 200 x 500 by {by} does not fit: {FREE}{remedies} "
            "memory that you have as Plan.execute's workspace=", lambda: made.execute(A, B))
    if by == "fp16x3":
        assert made.workspace_bytes == WANTED
        with pytest.raises(InvalidValue, match=r"there was none; call execute\(\)"):
            made.last_path()
    own = np.empty(-(-wanted // 4), np.float32)
    assert np.allclose(made.execute(A, B, workspace=own), A @ B, atol=1e-3)


@pytest.mark.parametrize("library", [Full(1, 2)], indirect=True)
@pytest.mark.parametrize(("kernel", "split"), [(SPECIALISED, 3), (WIDE, 0), (WIDE, 1)])
def test_ieee_products_do_without(library: FullLibrary, monkeypatch: pytest.MonkeyPatch, kernel: Any,
                                  split: int) -> None:
    """Partial sums and repacked operands: a tile without them, when no room is found."""
    asked, decided = list[Any](), launch.Decided(calls={})
    hungry = Choice(kernel, replace(kernel.default, split=split), "", "")

    def bound_for(problem: Problem, gpu: Any, choice: Any = None) -> Any:
        asked.append(choice)
        return (stand_in.Interpreted(problem, library.memory) if len(asked) > 1 else
                Hungry(problem, library.memory, hungry, 4096))

    monkeypatch.setattr(launch, "bound_for", bound_for)
    for _ in range(2):  # the second time from the cache, without asking for memory again
        assert np.allclose(launch.on_device(library, 0, Request(A, B), decided=decided).result, A @ B, atol=1e-3)
    assert (asked[1].kernel, asked[1].config) == (SPECIALISED, SPECIALISED.default) and len(asked) == 2
    launched = launch.on_device(library, 0, Request(A, B), decided=decided, workspace=np.empty(1024, np.float32))
    assert launched.bound.workspace_bytes == 4096  # memory that the caller brings is used


def test_prepared(library: FullLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "SplitOperand", lambda scheme, problem, gpu: SimpleNamespace(bytes=4000))
    refused(library, f"b, 500 x 200, split for fp16x3 in 4,000 bytes, does not fit: {FREE}prepare it with "
            "precision='ieee', which splits nothing (0 bytes)",
            lambda: prepared._split(library, B, 0, "fp16x3", False, stand_in.STREAM))


def test_host_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a workspace has no room tiles get smaller, which want smaller ones, until there is nothing left to cut."""
    class Wanting(lazy_driver._Product):
        workspace_bytes = 777_777

    class FullDevices(lazy_driver.Devices):
        def _cuMemAllocFromPoolAsync(self, place: Any, size: int, pool: int, stream: int) -> int:
            return status if size >= 777_777 else super()._cuMemAllocFromPoolAsync(place, size, pool, stream)

    for status in (lazy_driver.OUT_OF_MEMORY, 719):
        with lazy_driver.present(monkeypatch, FullDevices(1, room=1 << 30)) as devices:
            for module in (small_host, worker):
                monkeypatch.setattr(module, "bound_for", lambda problem, gpu, choice: Wanting(problem, devices))
            with pytest.raises(LaunchFailed) as caught:
                pg.matmul(A, B)
        assert isinstance(caught.value, OutOfMemory) == (status == lazy_driver.OUT_OF_MEMORY)
        if status == lazy_driver.OUT_OF_MEMORY:
            assert str(caught.value).startswith("a row of A and a column of B, 4,000 bytes, does not fit: GPU 0 has ")
            assert "777,777 bytes of device memory" in str(caught.value.__cause__)


def test_cupys_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its adapter, over a module that stands for CuPy."""
    cupy, where = ModuleType("cupy"), "peakgemm.arrays.cupy"
    cupy.__dict__["cuda"] = SimpleNamespace(memory=SimpleNamespace(OutOfMemoryError=Full))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, where, raising=False)
    monkeypatch.setattr(arrays, "cupy", None, raising=False)
    adapter = importlib.import_module(where).Cupy()
    del sys.modules[where]  # it knows the stand-in alone: what was there before comes back at the end
    assert adapter.out_of_memory(Full(1, 2)) and not adapter.out_of_memory(MemoryError())


@pytest.mark.parametrize(("error", "full"), [
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."), True),
    (LaunchFailed("8 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"), True),
    (LaunchFailed("recording an event: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"), False),
    (RuntimeError("INTERNAL: RESOURCE_EXHAUSTED"), False), (ValueError("RESOURCE_EXHAUSTED: "), False)])
def test_jaxs_own_errors(error: Exception, full: bool) -> None:
    pytest.importorskip("jax", reason="needs jax")
    from peakgemm.arrays.jax import Jax

    assert Jax().out_of_memory(error) == full


def test_torchs_warm_path(library: FullLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from peakgemm.arrays.torch import Torch

    error = torch.cuda.OutOfMemoryError("CUDA out of memory.") if isinstance(library.error, Full) else library.error
    call = launch.BoundCall(Canonical((300, 200), {}, PROBLEM), Hungry(PROBLEM, stand_in.Memory()), {}, 0)

    def scratch(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(Torch, "scratch", scratch)
    with pytest.raises(type(error)) as caught:
        call.workspace(Torch(), torch.empty(300, 500), stand_in.STREAM)
    assert isinstance(caught.value, OutOfMemory) == (error is not library.error)
    assert caught.value is error or str(caught.value).startswith(f"a workspace of {WANTED:,} bytes")
