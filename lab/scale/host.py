"""Products of arrays in the host's memory: a process of the scale suite, run as ``python -m``.

The baselines, interleaved with ours: the same product of arrays that lie on the GPU, and what a user of torch writes,
``(from_numpy(a).cuda() @ from_numpy(b).cuda()).cpu()``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lab.scale.host_model import FLOAT, Bus
from lab.scale.parts import Answer
from lab.scale.spans import recorded
from lab.scale.timeline import accounts
from peakgemm.api import gemm, matmul
from peakgemm.calls.host.small_host import SHARED_BYTES

RECORDED = 4096  # sizes from here on have a timeline: they run in tiles
_PROBE_BYTES = 1 << 30
_BLOCK = 2048

REPEATED = 10  # this product once failed to launch on several GPUs, and not in three later runs: a rare fault, if any


def main(place: Path) -> None:
    """Measure what the file at ``place`` asks for; the answer lies beside it."""
    import torch

    task = json.loads(place.read_text())
    answer = Answer(place, task["seconds"])
    answer.found["gpu"] = torch.cuda.get_device_name(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    sizes = sorted(task["sizes"])
    rows: list[dict[str, Any]] = []
    answer.found["rows"] = rows
    answer.part("correct", lambda: answer.found.update(correct=correct(task["gpus"], task["precisions"])))
    answer.part("bus", lambda: answer.found.update(bus=bus(task["gpus"])._asdict()), 5)
    if task["probe"]:
        answer.part("copies", lambda: answer.found.update(copies=copies()), 5)
        answer.part("pages", lambda: answer.found.update(pages=pages(sizes)), 5)
    for size in sizes:
        operands: list[Any] = []
        for precision in task["precisions"]:
            wanted = 8 * (size / 30000) ** 3 + 12 * (size / 30000) ** 2
            answer.part(f"{size} {precision}",
                        lambda operands=operands, size=size, precision=precision: rows.extend(  # type: ignore[misc]
                            products(operands, size, precision, task["gpus"], torch)), wanted)


def drawn(size: int, seed: int) -> Any:
    """Random normal values: rows drawn once and repeated, shifted, so that 30,000 of them take a second."""
    block = np.random.default_rng(seed).standard_normal((min(size, _BLOCK), size), np.float32)
    x = np.empty((size, size), np.float32)
    for low in range(0, size, _BLOCK):
        part = x[low:low + _BLOCK]
        part[:] = np.roll(block[:part.shape[0]], low // _BLOCK, axis=1)
    return x


def error_of(a: Any, b: Any, c: Any) -> float:
    """The largest ``|C - AB| / (eps |A||B|)`` of some elements against FP64; NaN is infinite."""
    m, n = c.shape
    rows, columns = (np.unique(np.linspace(0, extent - 1, 24).astype(int)) for extent in (m, n))
    left, right = a[rows].astype(np.float64), b[:, columns].astype(np.float64)
    scale = np.maximum(2.0**-23 * (abs(left) @ abs(right)), 1e-300)
    return float(np.nan_to_num(abs(c[np.ix_(rows, columns)] - left @ right) / scale, nan=np.inf).max())


def correct(gpus: int, precisions: list[str]) -> dict[str, Any]:
    """Errors of tiles at an odd size on one GPU and on all, and whether both have the same bits, `REPEATED` times."""
    a, b = drawn(3001, 1), drawn(3001, 2)[:, :2777]
    found: dict[str, Any] = {}
    for precision in precisions:
        one = matmul(a, b, precision=precision)
        several = [matmul(a, b, precision=precision, devices=list(range(gpus))) for _ in range(REPEATED)]
        found[precision] = {"error_one": error_of(a, b, one), "error_all": error_of(a, b, several[0]),
                            "same_bits": all(bool((one == every).all()) for every in several)}
        if not (found[precision]["error_one"] < 50 and found[precision]["same_bits"]):
            raise AssertionError(f"{precision}: {found[precision]}")
    scaled = gemm(a.T, b, one, alpha=0.5, beta=2.0, trans_a=True)
    found["gemm_error"] = float(abs(scaled - 2.5 * one).max() / abs(one).max())
    if not found["gemm_error"] < 1e-4:
        raise AssertionError(f"gemm: {found['gemm_error']}")
    return found


def products(operands: list[Any], size: int, precision: str, gpus: int, torch: Any) -> list[dict[str, Any]]:
    """Rows of one size: on one GPU and, where there are more, on all. ``operands``: drawn once for a size."""
    torch.cuda.empty_cache()  # what the sizes before have left
    operands[:] = operands or [drawn(size, 1), drawn(size, 2)]
    a, b = operands
    there = [torch.from_numpy(x).cuda() for x in (a, b)]
    out = torch.empty(size, size, device="cuda")

    def in_core() -> None:
        matmul(*there, out=out, precision=precision)
        torch.cuda.synchronize()

    works: dict[str, Callable[[], Any]] = {
        "in_core": in_core,
        "one": lambda: matmul(a, b, precision=precision),
    }
    if gpus > 1:
        works["all"] = lambda: matmul(a, b, precision=precision, devices=list(range(gpus)))
    else:
        works["torch"] = lambda: (torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()).cpu()
    error = error_of(a, b, works["one"]())
    if not error < 50:
        raise AssertionError(f"error {error} eps")
    rounds = 3 if size > 16384 else 5 if size >= 4096 else 15
    times: dict[str, list[float]] = {name: [] for name in works}
    long = {"torch"} if size >= 16384 else set()  # seconds, of the bus alone: once, and not before
    for name in works.keys() - long:  # warm: code, streams, pinned buffers
        works[name]()
    for i in range(rounds):
        for name, each in works.items():
            if name in long and i:
                continue
            calls = 1 if size >= 1024 else 8
            start = time.perf_counter()
            for _ in range(calls):
                result = each()
            times[name].append(1e3 * (time.perf_counter() - start) / calls)
            del result  # to give its pages back is no part of a single call
    ms = {name: median(each) for name, each in times.items()}
    common = {"size": size, "precision": precision, "error": error, "in_core_ms": ms["in_core"]}
    one: dict[str, Any] = {**common, "gpus": 1, "ms": ms["one"], "share_of_in_core": ms["in_core"] / ms["one"],
                           "samples_ms": times}
    found = [one]
    if gpus > 1:
        found.append({**common, "gpus": gpus, "ms": ms["all"], "speedup": ms["one"] / ms["all"]})
    else:
        one |= {"torch_ms": ms["torch"], "ratio_to_torch": ms["torch"] / ms["one"]}
    if size >= RECORDED:
        for row, name in zip(found, ("one", "all"), strict=False):
            with recorded(range(int(row["gpus"]))) as line:
                works[name]()
            row["timeline"] = accounts(line.spans, line.end - line.start)
    return found


def bus(gpus: int) -> Bus:
    """The rates that the model asks for: both ways at a time, in as many threads as a call has, into fresh pages."""
    alone, together = rates([0]), rates(list(range(gpus)))
    one, tall, wide = (np.ones(shape, np.float32) for shape in ((1, 1), (1024, 1), (1, 2048)))
    # 8 MB of result, which computes nothing: as a small call, and in tiles.
    size, call_us = FLOAT * 1024 * 2048, 1e3 * _least(lambda: matmul(one, one), 20)
    small_us, tiled_us = (1e3 * _least(lambda devices=devices: matmul(tall, wide, devices=devices), 20)  # type: ignore[misc]
                          for devices in (None, 0))
    return Bus(*alone, sum(together) / 2 * gpus, call_us, max(0.0, tiled_us - size / (1e3 * alone[1])),
               small_in_gbs=_inward(SHARED_BYTES // 2, call_us), shared_in_gbs=_inward(4 * SHARED_BYTES, call_us),
               small_out_gbs=size / (1e3 * max(1.0, small_us - call_us)))


def _inward(size: int, call_us: float) -> float:
    """GB/s of two operands of ``size`` bytes together and one element of result."""
    x = np.ones((1, size // 2 // FLOAT), np.float32)
    y = np.ones((x.size, 1), np.float32)
    return size / (1e3 * max(1.0, 1e3 * _least(lambda: matmul(x, y), 20) - call_us))


def rates(indices: list[int]) -> tuple[float, float]:
    """GB/s of each of these GPUs in and out, all at a time."""
    from peakgemm.runtime.lanes import lane
    from peakgemm.runtime.memory import DeviceMemory

    x, found = np.ones((_PROBE_BYTES // 4 // _BLOCK, _BLOCK), np.float32), []
    with ExitStack() as stack, ThreadPoolExecutor(2 * len(indices)) as pool:
        ways, memory = [], []
        for index in indices:
            ways.append(stack.enter_context(lane(index, len(indices))))
            memory.append([DeviceMemory(x.nbytes, ways[-1].inward) for _ in range(2)])
            ways[-1].wait()

        def done(futures: list[Any]) -> float:
            for future in futures:
                future.result()
            return time.perf_counter()

        for _ in range(4):
            start, copies = time.perf_counter(), []
            for way, (source, target) in zip(ways, memory, strict=True):
                copies += [way.uploader.upload(x, target.pointer).futures,
                           way.downloader.download(source.pointer, np.empty_like(x))]
            ends = list(pool.map(done, copies))
            for way in ways:
                way.wait()
            found.append([x.nbytes / 1e9 / (max(ends[side::2]) - start) for side in range(2)])
        memory.clear()
    into, out = (median(each[side] for each in found[1:]) for side in range(2))  # the first has pages locked
    return into, out


def copies() -> list[dict[str, Any]]:
    """GB/s of staged copies by numbers of threads, each way and both ways at a time."""
    from peakgemm.runtime.lanes import lane
    from peakgemm.runtime.memory import DeviceMemory
    from peakgemm.runtime.transfer import CHUNK_BYTES, Downloader, Uploader

    x = np.ones(_PROBE_BYTES // 4, np.float32)
    y = np.empty_like(x)
    y[:] = 0
    found = []
    with lane(0) as way:
        memory = [DeviceMemory(x.nbytes, way.inward) for _ in range(2)]
        way.wait()
        for count in (1, 2, 4, 6, 8, 12, 16):
            for chunk in (CHUNK_BYTES // 4, CHUNK_BYTES, 4 * CHUNK_BYTES) if count == 8 else (CHUNK_BYTES,):
                up, down = Uploader(0, way.inward, count, chunk), Downloader(0, way.outward, count, chunk)

                def inward(up: Uploader = up) -> list[Any]:
                    return list(up.upload(x, memory[0].pointer).futures)

                def outward(down: Downloader = down) -> list[Any]:
                    return down.download(memory[1].pointer, y)

                rates = {}
                for name, calls in (("in", (inward,)), ("out", (outward,)), ("both", (inward, outward))):
                    best = float("inf")
                    for _ in range(3):
                        start = time.perf_counter()
                        for future in [future for call in calls for future in call()]:
                            future.result()
                        way.wait()
                        best = min(best, time.perf_counter() - start)
                    rates[f"{name}_gbs"] = x.nbytes / best / 1e9  # of each way
                up.close()
                down.close()
                found.append({"threads": count, "chunk_bytes": chunk, **rates})
        memory.clear()
    return found


def pages(sizes: list[int]) -> list[dict[str, Any]]:
    """Milliseconds to bring a square of each size to the GPU: staged, and from pages that are locked for it."""
    from peakgemm.runtime import driver
    from peakgemm.runtime.lanes import lane
    from peakgemm.runtime.memory import DeviceMemory, copy_in

    found = []
    with lane(0) as way:
        for size in sizes:
            x = np.ones((size, size), np.float32)
            memory = DeviceMemory(x.nbytes, way.inward)
            way.wait()
            address = x.__array_interface__["data"][0]

            def staged(x: Any = x, memory: DeviceMemory = memory) -> None:
                way.uploader.upload(x, memory.pointer).order()
                way.wait()

            row: dict[str, Any] = {"size": size, "bytes": x.nbytes, "staged_ms": _least(staged)}
            marks = [time.perf_counter()]
            driver.check("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(x.nbytes), 0)
            marks.append(time.perf_counter())
            copy_in(memory.pointer, address, x.nbytes, way.inward)
            way.wait()
            marks.append(time.perf_counter())
            driver.check("cuMemHostUnregister", ctypes.c_void_p(address))
            marks.append(time.perf_counter())
            row |= {name: 1e3 * (end - start) for name, start, end in
                    zip(("lock_ms", "copy_ms", "unlock_ms"), marks, marks[1:], strict=False)}
            found.append(row)
            del memory, x
            way.wait()
    return found


def _least(call: Callable[[], Any], rounds: int = 3) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        best = min(best, 1e3 * (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    main(Path(sys.argv[1]))
