"""Subnormal numbers on the CPU in threads whose flags make zeros of them, as XLA's do: kept in every product."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
import threading
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.kernels.schedule import arguments
from peakgemm.problem import Problem
from peakgemm.runtime.convention import Convention
from peakgemm.runtime.float_flags import ieee_flags

FLUSH = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}.get(platform.machine())  # of a fenv_t: word, FTZ and DAZ
pytestmark = pytest.mark.skipif(FLUSH is None or sys.platform != "linux", reason="sets the flags of x86-64 or aarch64")

RNG = np.random.default_rng(0)
TINY = 1e-40  # below the least normal number, 1.18e-38


def drawn(*shape: int, low: int, high: int) -> Any:
    """Numbers with exponents from ``low`` to ``high``."""
    return np.ldexp(RNG.uniform(-1, 1, shape), RNG.integers(low, high, shape)).astype(np.float32)


A, B, C = drawn(6, 7, low=-90, high=-60), drawn(7, 5, low=-75, high=-60), drawn(6, 5, low=-148, high=-120)
LARGE = np.ones((2, 2), np.float32)


def flushing(run: Callable[[], Any]) -> Any:
    """What ``run`` gives in a thread that has its flags set before and after."""
    libm, found = ctypes.PyDLL("libm.so.6"), []

    def flushes() -> bool:
        return not np.any(np.full(4, TINY, np.float32) * np.float32(1))

    def work() -> None:
        flags = ctypes.create_string_buffer(64)
        libm.fegetenv(flags)
        assert FLUSH is not None
        at, bits = FLUSH
        struct.pack_into("<I", flags, at, struct.unpack_from("<I", flags, at)[0] | bits)
        libm.fesetenv(flags)
        try:
            found.append((flushes(), run(), flushes()))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    before, result, after = found[0]
    assert before and after and np.float32(TINY) != 0
    return result


def torchs() -> Any:
    torch = pytest.importorskip("torch", reason="needs torch")
    return pg.matmul(torch.from_numpy(A), torch.from_numpy(B), reproducible=True).numpy()


def files() -> Any:
    with TemporaryDirectory() as folder:
        for name, x in (("a", A), ("b", B), ("c", C)):
            np.save(f"{folder}/{name}.npy", x)
        pg.multiply_files(f"{folder}/a.npy", f"{folder}/b.npy", f"{folder}/out.npy", c=f"{folder}/c.npy", alpha=0.5)
        return np.load(f"{folder}/out.npy")


CALLS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: pg.matmul(A, B),
    "out": lambda: pg.matmul(A, B, out=np.empty((6, 5), np.float32)),
    "gemm": lambda: pg.gemm(A, B, C, alpha=0.5, beta=-2.0),
    "alpha": lambda: pg.gemm(LARGE, LARGE, alpha=TINY),
    "beta": lambda: pg.gemm(LARGE, LARGE, LARGE, alpha=0, beta=TINY),
    "reproducible": lambda: pg.matmul(A, B, reproducible=True),
    "reproducible gemm": lambda: pg.gemm(A, B, C, alpha=0.75, beta=-2.0, reproducible=True),
    "emulated": lambda: pg.matmul(A, B, precision="emulated"),
    "replay": lambda: pg.replay(A, B, C),
    "plan": lambda: pg.plan(A, B).execute(A, B),
    "prepared": lambda: A @ pg.prepare(B),
    "batch": lambda: pg.matmul(np.stack([A, -A]), B),
    "devices": lambda: pg.matmul(A, B, devices="all"),
    "files": files, "torch": torchs,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_thread_that_flushes(call: str) -> None:
    """The bits are those of a thread that does not."""
    want = CALLS[call]()
    assert np.any((want != 0) & (abs(want) < 2.0**-126)), "nothing is subnormal here"
    got = flushing(CALLS[call])
    assert (got.view(np.uint32) == want.view(np.uint32)).all()


def test_what_the_bits_are() -> None:
    """Against binary64, in which all of this is normal."""
    exact = A.astype(np.float64) @ B
    for got in (flushing(CALLS["matmul"]), flushing(CALLS["reproducible"])):
        assert (abs(got - exact) <= 4 * 2.0**-149).all()


def test_arguments_of_kernels() -> None:
    """Packed as C floats, by `struct` alone a subnormal factor would be 0."""
    assert flushing(lambda: struct.pack("f", TINY)) == bytes(4)
    values = Convention(values="if")
    for pack in (lambda: values.pack(7, TINY),
                 lambda: arguments(Problem.contiguous(9, 9, 9, TINY, -TINY), 1, 0, 0, 0, (1, 1, 1))):
        assert flushing(pack) == pack()
    assert values.unpack(values.pack(7, TINY)) == (7, float(np.float32(TINY)))


def test_flags_are_given_back_after_an_error() -> None:
    def fails() -> str:
        try:
            with ieee_flags():
                raise ValueError("said")
        except ValueError as error:
            return str(error)

    assert flushing(fails) == "said"  # which looks at the flags afterwards


def test_threads_of_xla() -> None:
    """Handlers and callbacks run in them."""
    jax = pytest.importorskip("jax", reason="needs jax")
    with jax.default_device(jax.devices("cpu")[0]):
        said = jax.ShapeDtypeStruct((6, 5), np.float32)
        for ours, host in (
                (lambda *x: pg.jax.gemm(*x, alpha=0.75, beta=-2.0, reproducible=True), CALLS["reproducible gemm"]),
                (lambda *x: pg.gemm(*x, alpha=0.5, beta=-2.0), CALLS["gemm"])):
            for run in (ours, lambda *x, host=host: jax.pure_callback(lambda *_: host(), said, *x)):
                got = np.asarray(jax.jit(run)(A, B, C))
                assert (got.view(np.uint32) == host().view(np.uint32)).all()
        got = jax.jit(lambda x: pg.jax.gemm(x, x, alpha=TINY))(LARGE)
        assert (np.asarray(got) == CALLS["alpha"]()).all()
