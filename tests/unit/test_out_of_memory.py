"""Where no room is left for a workspace or a split operand: who says so, what the error tells, and who catches it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
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
from peakgemm.calls.host import worker
from peakgemm.calls.request import Request
from peakgemm.errors import InvalidValue, LaunchFailed, OutOfMemory, out_of_memory_as
from peakgemm.kernels.emulated.product import PRODUCTS
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.problem import Problem
from peakgemm.runtime import driver
from peakgemm.selection.choose import Choice

FP16X3, PROBLEM = PRODUCTS["fp16x3"], Problem.contiguous(300, 200, 500)
NAMED = Choice(FP16X3, FP16X3.default, "named", "asked for by name")
WANTED = launch.workspace_bytes(NAMED, PROBLEM, stand_in.GPU)


class Full(MemoryError):
    """A library's own error, made of figures as CuPy's is."""

    def __init__(self, size: int, total: int) -> None:
        super().__init__(f"{size} of {total} bytes")


class FullLibrary(stand_in.StandIn):
    """Gives results, but no ``refused`` floats; ``error`` instead."""

    def __init__(self, refused: int, error: Exception | None = None) -> None:
        super().__init__()
        self.refused, self.error = refused, error or Full(1, 2)

    def empty(self, shape: tuple[int, ...], like: Any, stream: int) -> Any:
        if shape == (self.refused,):
            raise self.error
        return super().empty(shape, like, stream)

    def out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, Full)


class Hungry(stand_in.Interpreted):
    """A bound kernel with a workspace."""

    def __init__(self, problem: Problem, memory: Any, choice: Choice = NAMED, wanted: int = WANTED) -> None:
        super().__init__(problem, memory)
        self.kernel, self.config, self.workspace_bytes = choice.kernel, choice.config, wanted


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has 12,345,678 bytes free."""
    def info(call: str, free: Any, total: Any) -> None:
        assert call == "cuMemGetInfo_v2"
        free._obj.value, total._obj.value = 12_345_678, 80 << 30

    monkeypatch.setattr(launch.device, "require", lambda index: stand_in.GPU)
    monkeypatch.setattr(launch.device, "activated", lambda index: nullcontext())
    monkeypatch.setattr(launch.device, "count", lambda: 0)  # that may be found, or asked of a driver with one call
    monkeypatch.setattr(driver, "check", info)


def operands() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((300, 500), (500, 200)))


def product(library: FullLibrary, monkeypatch: pytest.MonkeyPatch, bound: Callable[..., Any] = Hungry,
            **request: Any) -> Any:
    """By `on_device`, with a kernel that wants a workspace."""
    monkeypatch.setattr(launch, "bound_for", lambda problem, gpu, choice=None: bound(problem, library.memory))
    request = Request(*operands(), precision="fp16x3", **request)
    return launch.on_device(library, 0, request, decided=launch.Decided(NAMED, calls={})).result


def test_the_error_tells_sizes_and_remedies(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    library = FullLibrary(-(-WANTED // 4))
    with pytest.raises(OutOfMemory) as caught:
        product(library, monkeypatch)
    assert str(caught.value) == (
        f"a workspace of {WANTED:,} bytes for 300 x 200 x 500 by fp16x3 does not fit: GPU 0 has 12,345,678 of "
        f"85,899,345,920 bytes free beside what stand-in holds; use precision='ieee', which does without, or split "
        "a constant b once, with peakgemm.prepare, or pass memory that you have as Plan.execute's workspace=")
    assert caught.value.__cause__ is library.error


@pytest.mark.parametrize("kind", [Full, LaunchFailed, RuntimeError, type("OutOfMemoryError", (RuntimeError,), {})])
def test_one_class_for_every_library(kind: type[Exception]) -> None:
    error = out_of_memory_as(kind)("so many bytes")
    assert isinstance(error, kind) and isinstance(error, OutOfMemory) and str(error) == "so many bytes"
    assert type(error).__name__ == "OutOfMemory" and not isinstance(error, InvalidValue)


def test_other_errors_stay_what_they_are(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    library = FullLibrary(-(-WANTED // 4), ValueError("an illegal address was met"))
    with pytest.raises(ValueError, match=r"^an illegal address") as caught:
        product(library, monkeypatch)
    assert caught.value is library.error


def test_only_what_helps_is_proposed(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def split(problem: Problem, memory: Any) -> Any:  # b was split before
        return Hungry(problem, memory, wanted=WANTED // 2)

    def partial(problem: Problem, memory: Any) -> Any:
        return Hungry(problem, memory, Choice(SPECIALISED, SPECIALISED.default, "", ""), 4096)

    with pytest.raises(OutOfMemory, match=r"'ieee'.*workspace=$") as caught:
        product(FullLibrary(WANTED // 8), monkeypatch, split)
    assert "prepare" not in str(caught.value)
    with pytest.raises(OutOfMemory, match=r"^a workspace of 4,096 bytes .* by specialised does not fit") as caught:
        product(FullLibrary(1024), monkeypatch, partial)
    assert "'ieee'" not in str(caught.value) and "prepare" not in str(caught.value)
    assert str(caught.value).endswith("; pass memory that you have as Plan.execute's workspace=")


@pytest.mark.parametrize(("kernel", "split"), [(SPECIALISED, 3), (WIDE, 0), (WIDE, 1)])
def test_ieee_products_do_without(gpu: None, monkeypatch: pytest.MonkeyPatch, kernel: Any, split: int) -> None:
    """Partial sums and repacked operands: a tile without them, when no room is found."""
    library, asked, decided = FullLibrary(1024), list[Any](), launch.Decided(calls={})
    tile = WIDE.default if kernel is WIDE else SPECIALISED.default
    hungry = Choice(kernel, replace(tile, split=split), "", "")

    def bound_for(problem: Problem, gpu: Any, choice: Any = None) -> Any:
        asked.append(choice)
        return (stand_in.Interpreted(problem, library.memory) if len(asked) > 1 else
                Hungry(problem, library.memory, hungry, 4096))

    monkeypatch.setattr(launch, "bound_for", bound_for)
    a, b = operands()
    for _ in range(2):  # the second time from the cache, without asking for memory again
        assert np.allclose(launch.on_device(library, 0, Request(a, b), decided=decided).result, a @ b, atol=1e-3)
    assert (asked[1].kernel, asked[1].config) == (SPECIALISED, SPECIALISED.default) and len(asked) == 2
    launched = launch.on_device(library, 0, Request(a, b), decided=decided, workspace=np.empty(1024, np.float32))
    assert launched.bound.workspace_bytes == 4096  # memory that the caller brings is used


def test_plan(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    library, (a, b) = FullLibrary(-(-WANTED // 4)), operands()
    monkeypatch.setitem(arrays._BY_TYPE, np.ndarray, library)
    monkeypatch.setattr(plan, "choice_for", lambda problem, gpu, precision: NAMED)
    for module in (plan, launch):
        monkeypatch.setattr(module, "bound_for", lambda problem, gpu, choice=None: Hungry(problem, library.memory))
    made = plan.Plan(Request(a, b, precision="fp16x3"))
    with pytest.raises(OutOfMemory, match=f"^a workspace of {WANTED:,} bytes for 300 x 200 x 500 by fp16x3"):
        made.execute(a, b)
    with pytest.raises(InvalidValue, match="there was none"):
        made.last_path()
    own = np.empty(-(-made.workspace_bytes // 4), np.float32)
    assert np.allclose(made.execute(a, b, workspace=own), a @ b, atol=1e-3)  # the remedy is one


def test_prepared(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from peakgemm.kernels.emulated import product as emulated

    monkeypatch.setattr(emulated, "SplitOperand", lambda scheme, problem, gpu: SimpleNamespace(bytes=4000))
    for name, error in (("Full", Full(1, 2)), ("ValueError", ValueError("another"))):
        library = FullLibrary(1000, error)
        with pytest.raises(type(error)) as caught:
            prepared._split(library, operands()[1], 0, "fp16x3", False, stand_in.STREAM)
        assert (caught.value is error) == (name == "ValueError")
        if name == "Full":
            assert str(caught.value) == (
                "b, 500 x 200, split for fp16x3 in 4,000 bytes, does not fit: GPU 0 has 12,345,678 of 85,899,345,920 "
                "bytes free beside what stand-in holds; prepare it with precision='ieee', which splits nothing (0 "
                "bytes)")


def test_host_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a workspace has no room tiles get smaller, which want smaller ones, until there is nothing left to cut."""
    class Wanting(lazy_driver._Product):
        workspace_bytes = 777_777

    class Full(lazy_driver.Devices):
        status = 0

        def _cuMemAllocFromPoolAsync(self, place: Any, size: int, pool: int, stream: int) -> int:
            return self.status if size >= 777_777 else super()._cuMemAllocFromPoolAsync(place, size, pool, stream)

    for status, expected in ((lazy_driver.OUT_OF_MEMORY, OutOfMemory), (719, LaunchFailed)):
        with lazy_driver.present(monkeypatch, Full(1, room=1 << 30)) as devices:
            devices.status = status
            for module in (launch, worker):
                monkeypatch.setattr(module, "bound_for", lambda problem, gpu, choice: Wanting(problem, devices))
            with pytest.raises(expected) as caught:
                pg.matmul(*operands())
            assert isinstance(caught.value, LaunchFailed)  # as before
            assert isinstance(caught.value, OutOfMemory) == (expected is OutOfMemory)
            if expected is OutOfMemory:
                said = str(caught.value)
                assert said.startswith("a row of A and a column of B, 4,000 bytes, does not fit: GPU 0 has ")
                assert "777,777 bytes of device memory" in str(caught.value.__cause__)
                assert "Plan.execute" not in said and "holds" not in said and "prepare" not in said


def adapter(monkeypatch: pytest.MonkeyPatch, name: str, kind: str, **modules: Any) -> Any:
    """A library's adapter, over modules that stand for the library's."""
    for module, members in modules.items():
        made = ModuleType(module.replace("_", "."))
        made.__dict__.update(members)
        monkeypatch.setitem(sys.modules, made.__name__, made)
    where = f"peakgemm.arrays.{name}"
    monkeypatch.delitem(sys.modules, where, raising=False)
    monkeypatch.setattr(sys.modules["peakgemm.arrays"], name, None, raising=False)
    found = getattr(importlib.import_module(where), kind)()
    del sys.modules[where]  # it knows stand-ins alone: what was there before comes back at the end
    return found


def test_cupys(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(OutOfMemoryError=Full)
    found = adapter(monkeypatch, "cupy", "Cupy", cupy={"cuda": SimpleNamespace(memory=memory)})
    assert found.out_of_memory(Full(1, 2)) and not found.out_of_memory(MemoryError("of the host"))


def test_jaxs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = adapter(monkeypatch, "jax", "Jax", jax={"__path__": []}, jax_dlpack={})
    assert found.out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."))
    assert found.out_of_memory(LaunchFailed("8 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"))
    assert not found.out_of_memory(LaunchFailed("recording an event: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"))
    assert not found.out_of_memory(RuntimeError("INTERNAL: RESOURCE_EXHAUSTED")) and not found.out_of_memory(
        ValueError("RESOURCE_EXHAUSTED: "))


def test_torchs_warm_path(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from peakgemm.arrays.torch import Torch

    full, other = torch.cuda.OutOfMemoryError("CUDA out of memory."), RuntimeError("an illegal memory access")
    call = launch.BoundCall(Canonical((300, 200), {}, PROBLEM), Hungry(PROBLEM, stand_in.Memory()), {}, 0)
    for error in (full, other):
        def scratch(self: Any, *args: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(Torch, "scratch", scratch)
        with pytest.raises(type(error)) as caught:
            call.workspace(Torch(), torch.empty(300, 500), stand_in.STREAM)
        assert (caught.value is error) == (error is other)
        if error is full:
            assert isinstance(caught.value, OutOfMemory) and caught.value.__cause__ is full
            assert str(caught.value).startswith(f"a workspace of {WANTED:,} bytes") and "torch holds" in str(
                caught.value)
