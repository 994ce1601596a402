"""What `lab.public_timing` makes of times and results; the card's part is the GPU's."""

import ctypes
import struct

import numpy as np
import pytest

from lab import public_timing
from peakgemm.runtime import device, driver


def test_summary():
    rows = [{"predicted": predicted, "tflops": measured, "error": error} for predicted, measured, error in
            ((10.0, 8.0, 0.1), (30.0, 40.0, 0.2), (20.0, 20.0, 0.5), (1.0, 100.0, 7.0))]
    found = public_timing.summary([*rows, {"failed": "no memory"}, {"refused": "no launch"}])
    assert found == pytest.approx({"timed": 3, "median_error": 0.25, "largest_error": 0.25, "rank_correlation": 1.0})
    assert public_timing.summary(rows[:1]) == {"timed": 1}


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_result_is_checked(by_columns):
    a, b = np.random.default_rng(0).standard_normal((2, 64 * 64)).astype("f4")
    first, second = (one.reshape(64, 64, order="F" if by_columns else "C") for one in (a, b))
    c = (first @ second).ravel(order="F" if by_columns else "C")
    assert public_timing._error(a, b, c, 64, by_columns) < 1 < public_timing._error(a, b, c, 64, not by_columns)
    c[7] = np.nan
    assert public_timing._error(a, b, c, 64, by_columns) == np.inf


def test_arguments():
    addresses = {"A": 1 << 40}
    assert [public_timing._argument(word, 2048, addresses).raw[:8] for word in ("A", "M", "alpha", "beta")] == [
        struct.pack("<Q", 1 << 40), struct.pack("<q", 2048), struct.pack("<f4x", 1), bytes(8)]


def test_a_kernel_that_fails_ends_nothing(tmp_path, monkeypatch):
    """Without a GPU each process fails, with its last line for a reason; a job that could not be prepared keeps its."""
    monkeypatch.setattr(public_timing, "SIZES", (8,))
    (tmp_path / "jobs.json").write_text('[{"name": "one", "sizes": {}}, {"name": "two", "refused": "no launch"}]')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = public_timing.all_timed([{"name": "one", "sizes": {}}, {"name": "two", "refused": "no launch"}], tmp_path)
    assert [sorted(row) for row in rows] == [["failed", "name"], ["name", "refused"]] and rows[0]["failed"]


class Driver:
    """A driver whose memory is the host's: a launch is a product of 8 x 8, and takes 2 ms."""

    def __init__(self):
        self.memory, self.launched = [], []

    def __getattr__(self, name):
        return lambda *args: 0

    def cuMemAlloc_v2(self, address, size):
        self.memory.append(ctypes.create_string_buffer(size.value))
        address._obj.value = ctypes.addressof(self.memory[-1])
        return 0

    def cuMemcpyHtoD_v2(self, to, source, size):
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, to, source, size):
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuEventElapsedTime(self, ms, first, last):
        ms._obj.value = 2.0
        return 0

    def cuLaunchKernel(self, function, *args):
        *shape, shared, _, pointers, _ = args
        words = [ctypes.c_uint64.from_address(pointers[number]).value for number in range(4)]
        a, b, c = (np.ctypeslib.as_array((ctypes.c_float * 64).from_address(word)).reshape(8, 8) for word in words[:3])
        c[:] = a @ b
        self.launched.append((shape, shared, words[3]))
        return 0


def test_a_kernel_is_timed(tmp_path, monkeypatch):
    stub, draw = Driver(), np.random.default_rng(0)
    monkeypatch.setattr(driver, "library", lambda: stub)
    monkeypatch.setattr(device, "require", lambda: type("Gpu", (), {"index": 0}))
    monkeypatch.setattr(device, "make_current", lambda index: None)
    monkeypatch.setattr(public_timing, "SIZES", (8, 4))
    monkeypatch.setattr(public_timing, "ROWS", 8)
    for name in "ABC":
        np.save(tmp_path / f"{name}8.npy", draw.standard_normal(64).astype("f4"))
    launch = {"grid": [2, 1, 1], "block": [32, 1, 1], "shared": 16, "tflops": 5e-7, "limiter": "barrier"}
    row = public_timing.timed({"cubin": "", "kernel": "k", "storage": "row", "arguments": ["A", "B", "C", "M"],
                               "sizes": {"8": launch}}, tmp_path)
    assert row["tflops"] == 2 * 8 ** 3 / 2 / 1e9 and row["ms"] == [2.0] * public_timing.RUNS and row["error"] < 1
    assert row["predicted"] == 5e-7 and set(map(str, stub.launched)) == {"([2, 1, 1, 32, 1, 1], 16, 8)"}
