"""What instructions and memories of the GPU at hand take, in cycles of an SM: results/<gpu>/latencies.json.

    python -m lab.latencies --json results/h100/latencies.json
    python -m lab.latencies --compile --json FOLDER     # the cubins alone, without a GPU
    python -m lab.latencies --table --json results/h100/latencies.json    # for `peakgemm limits`, from it

Each row is a probe of latencies.cu: ``cycles`` for one operation of a warp (``block``: of all warps of the block), the
median over the SMs, the least of some launches. A chain gives a latency, a stream of independent operations a rate.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from peakgemm.errors import PeakgemmError
from peakgemm.runtime import device, driver
from peakgemm.runtime.compile import Compiled, compile_source, in_parallel
from peakgemm.runtime.convention import Convention
from peakgemm.runtime.device import Gpu
from peakgemm.runtime.launch import Launcher, load
from peakgemm.runtime.memory import DeviceMemory
from peakgemm.runtime.source import assemble
from peakgemm.runtime.tensor_map import Box
from peakgemm.tools import limits
from peakgemm.tools.bench import records

SOURCE, ENTRY, ARCH = Path(__file__).with_suffix(".cu"), "probe", "sm_90a"
CONVENTION = Convention(addresses=(0, 1), values="iiqq", dependent=False)  # sink, data; turns, stride, range, clocks
SHARED, LAUNCHES, LANES = 80 << 10, 3, 32
TABLE = Path(limits.__file__).with_name("h100.json")
KIB, MIB = 1 << 10, 1 << 20
MEMORY = 1 << 30  # of which the first half is chased and streamed through, the other one flushes L2
QUEUE_LENGTH = 24


@dataclass(frozen=True, slots=True)
class Probe:
    """A body of latencies.cu with its macros, and how it is launched; ``operations`` a turn of a warp.

    ``blocks``: 0, one an SM. ``cold``: L2 is flushed before each launch."""

    name: str
    operations: int
    macros: Mapping[str, int] = field(default_factory=dict)
    warps: tuple[int, ...] = (1,)
    strides: tuple[int, ...] = (4,)
    ranges: tuple[int, ...] = (4 * KIB,)
    turns: int = 200
    blocks: tuple[int, ...] = (0,)
    cold: bool = False

    def compiled(self) -> Compiled:
        macros = {"WIDTH": 1, "CACHED": 0, **self.macros, self.name.upper(): self.macros.get(self.name.upper(), 1)}
        return compile_source(assemble(SOURCE), ENTRY, ARCH, macros, name=SOURCE.name)


def _wide(name: str, operations: int, conflicts: tuple[int, ...] = (), **how: Any) -> list[Probe]:
    """32, 64 and 128 bits: all lanes one address, neighbours, and strides that give conflicts."""
    return [Probe(name, operations, {"WIDTH": width}, strides=(0, 4 * width, *(each for each in conflicts if
                  each > 4 * width)), **how) for width in (1, 2, 4)]


MANY = (4, 8, 16)
PROBES: tuple[Probe, ...] = (
    Probe("ffma_chain", 64), Probe("ffma_rate", 64, warps=(4, 8)),
    *(Probe("code", size, {"CODE": size}, warps=(4, 8), turns=max(20, 60000 // size))
      for size in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)),
    *_wide("lds_chase", 32, (8, 16, 32, 64, 128)),
    *_wide("lds_rate", 16, (8, 16, 32, 64, 128), warps=MANY),
    *_wide("sts_rate", 16, (8, 16, 32, 64, 128), warps=MANY), *_wide("sts_lds", 16),
    Probe("ldsm", 4, {"WIDTH": 4}, warps=(1, *MANY)),
    Probe("ldg_chase", 16, {"CACHED": 1}, strides=(64,)),
    Probe("ldg_chase", 16, strides=(4096 + 64,), ranges=(8 * MIB,), turns=100, blocks=(1, 0)),
    Probe("ldg_chase", 16, strides=(4096 + 64,), ranges=(512 * MIB,), turns=20, blocks=(1, 0), cold=True),
    *(Probe("ldg_rate", 8, {"WIDTH": width, "CACHED": 1}, warps=MANY,
            strides=(0, 4 * width, 32, 64, 128, 256, 512)) for width in (1, 4)),
    *(Probe("stream", 8, {"WIDTH": 4, "CACHED": via}, warps=(1, 2, 4, 8, 16), strides=strides,
            ranges=(16 * MIB,), turns=200) for via, strides in ((0, (0, 8 * KIB, 128 * KIB)), (1, (128 * KIB,)))),
    Probe("stream", 8, {"WIDTH": 4, "GRID": 1}, warps=(1, 2, 4, 8, 16), ranges=(512 * MIB,), turns=100),
    *(Probe("stream_store", 8, {"WIDTH": 4, "GRID": grid}, warps=(4, 16), strides=(128 * KIB,), ranges=(extent,))
      for grid, extent in ((0, 16 * MIB), (1, 512 * MIB))),
    *(Probe("copy_chain", 8, {"WIDTH": width, "CACHED": via}, strides=(4 * width,))
      for width, via in ((1, 1), (4, 1), (4, 0))),
    *(Probe("copy_rate", 8, {"WIDTH": width, "CACHED": via}, warps=MANY, strides=(0, 128 * KIB), ranges=ranges)
      for width, via, ranges in ((1, 1, (16 * KIB, 8 * MIB)), (4, 0, (8 * MIB,)), (4, 1, (16 * KIB, 8 * MIB)))),
    *(Probe("bulk", flight, {"IN_FLIGHT": flight}, strides=(1 * KIB, 4 * KIB, 16 * KIB), ranges=(8 * MIB,),
            blocks=(1, 0)) for flight in (1, 4)),
    *(Probe("tensor_copy", flight, {"IN_FLIGHT": flight}, strides=(16 * KIB,), blocks=(1, 0)) for flight in (1, 4)),
    Probe("bar", 16, {"THREADS": 1024}, warps=(1, 2, 4, 8, 16, 32)),
    Probe("mbarrier", 8, warps=(1, 2, 4, 8, 16)), Probe("ping_pong", 8, warps=(2,)),
    *(Probe(name, 16, {"WIDTH": width}, warps=warps) for width in (1, 2)
      for name, warps in (("hmma_chain", (1, 4)), ("hmma_rate", (4, 8)))),
    *(Probe("wgmma_chain", group, {"PER_GROUP": group, "THREADS": 256}, warps=(4, 8)) for group in (1, 2, 4, 8)),
    *(Probe("queue", 1, {"QUEUE": kind, "WIDTH": width, "QUEUE_LENGTH": QUEUE_LENGTH, "THREADS": 256},
            warps=(1, 4, 8), strides=(4 * width,), ranges=(16 * KIB,), turns=4)
      for kind, width in ((0, 1), (0, 4), (1, 4), (2, 1), (2, 4), (3, 1), (3, 4))),
)


class Bench:
    """Device memory, and launches of probes in the current context of ``gpu``."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._sms = gpu, gpu.sm_count
        self._data, self._sink = DeviceMemory(MEMORY, 0), DeviceMemory(4 * KIB, 0)
        self._clocks = (ctypes.c_int64 * (64 * KIB))()
        self._on_device = DeviceMemory(ctypes.sizeof(self._clocks), 0)
        driver.demand("clearing device memory", "cuMemsetD8Async", ctypes.c_uint64(self._data.pointer),
                      ctypes.c_ubyte(0), ctypes.c_size_t(MEMORY), ctypes.c_void_p(0))
        self._fill = Probe("fill", 1, {"THREADS": 1024}).compiled()
        self._flush = Probe("stream", 1, {"WIDTH": 4}).compiled()

    def rows(self, probe: Probe) -> list[dict[str, Any]]:
        """A probe as it is launched in each of its ways."""
        compiled = probe.compiled()
        ways = [(blocks or self._sms, warps, stride, extent) for blocks in probe.blocks for warps in probe.warps
                for stride in probe.strides for extent in probe.ranges]
        return [{"probe": probe.name, "macros": dict(probe.macros), "blocks": blocks, "warps": warps, "stride": stride,
                 "range": extent, **self._measured(probe, compiled, blocks, warps, stride, extent)}
                for blocks, warps, stride, extent in ways]

    def turnaround(self, threads: int, shared: int, spin: int = 20000) -> dict[str, Any]:
        """Cycles from the end of a block to the beginning of the one that takes its place, on an SM."""
        blocks = 8 * self._sms
        compiled = Probe("blocks", 1, {"THREADS": 1024}).compiled()
        self._launch(compiled, blocks, threads // LANES, spin, 0, 0, shared=shared)
        notes = self._read(3 * blocks)
        gaps = []
        for sm in set(notes[::3]):
            spans = sorted((notes[i + 1], notes[i + 2]) for i in range(0, len(notes), 3) if notes[i] == sm)
            ends = sorted(end for _, end in spans)
            resident = sum(start < ends[0] for start, _ in spans)
            gaps += [start - end for (start, _), end in zip(spans[resident:], ends, strict=False)]
        return {"probe": "blocks", "threads": threads, "shared": shared, "cycles": median(gaps), "least": min(gaps)}

    def _measured(self, probe: Probe, compiled: Compiled, blocks: int, warps: int, stride: int,
                  extent: int) -> dict[str, Any]:
        if probe.name == "ldg_chase":
            self._launch(self._fill, self._sms, 32, 1, stride, extent)
        boxes = [Box(1, 4096, 4096, 4096, 128, 32)] if probe.name == "tensor_copy" else []

        def taken(turns: int) -> list[int]:
            if probe.cold:
                self._launch(self._flush, self._sms, 16, 256, MIB, MEMORY // 2, behind=MEMORY // 2)
            self._launch(compiled, blocks, warps, turns, stride, extent, boxes)
            if probe.name == "queue":
                return self._read(blocks * warps * (QUEUE_LENGTH + 1))
            notes = self._read(2 * blocks * warps)
            each = 2 * warps
            return [max(notes[i + 1:i + each:2]) - min(notes[i:i + each:2]) for i in range(0, len(notes), each)]

        if probe.name == "queue":  # from one issue to the next, of the first SM's first warp
            looks = [taken(probe.turns)[:QUEUE_LENGTH + 1] for _ in range(LAUNCHES)][-1]
            return {"cycles": [(after - before) & 0xFFFFFFFF for before, after in pairwise(looks)]}
        least, most = (min(median(taken(turns)) for _ in range(LAUNCHES)) for turns in (probe.turns, 3 * probe.turns))
        block = (most - least) / (2 * probe.turns * probe.operations)
        return {"cycles": block, "once": least / (probe.turns * probe.operations)}

    def _launch(self, compiled: Compiled, blocks: int, warps: int, turns: int, stride: int, extent: int,
                boxes: Sequence[Box] = (), shared: int = SHARED, behind: int = 0) -> None:
        Launcher(load(compiled, shared, self._gpu), "", self._gpu, blocks, warps * LANES,
                 CONVENTION.pack(turns, stride, extent, self._on_device.pointer), boxes,
                 convention=CONVENTION).enqueue(self._sink.pointer, self._data.pointer + behind, 0, 0, 0, 0)

    def _read(self, count: int) -> list[int]:
        driver.demand("waiting for the device", "cuCtxSynchronize")
        driver.demand("a copy between host and device", "cuMemcpyDtoH_v2", ctypes.byref(self._clocks),
                      ctypes.c_uint64(self._on_device.pointer), ctypes.c_size_t(8 * count))
        return list(self._clocks[:count])


def table(rows: Sequence[Mapping[str, Any]], gpu_sms: int, before: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a GPU for `peakgemm limits`: what the probes tell; the rest as ``before``, in its ``guessed``."""
    def cycles(probe: str, warps: int | None = None, **what: int) -> list[float]:
        return [row["cycles"] / 1.0 for row in rows if row["probe"] == probe and "cycles" in row
                and warps in (None, row.get("warps")) and all(
                    {**row["macros"], **row}.get(name) == value for name, value in what.items())]

    l2, = cycles("ldg_chase", range=8 * MIB, blocks=gpu_sms)
    dram, = cycles("ldg_chase", range=512 * MIB, blocks=gpu_sms)
    box, = cycles("tensor_copy", IN_FLIGHT=1, blocks=gpu_sms)
    engine = 16 * KIB / min(cycles("bulk", IN_FLIGHT=4, stride=16 * KIB, blocks=1))
    streams = [512 * row["warps"] / row["cycles"] for row in rows if row["probe"] == "stream" and "cycles" in row
               and row["range"] == 16 * MIB and not row["macros"]["CACHED"]]
    found = {
        "shared": cycles("lds_chase", WIDTH=1, stride=4)[0], "l1": cycles("ldg_chase", CACHED=1)[0], "l2": l2,
        "dram": dram, "tag_cycles": cycles("ldg_rate", 16, WIDTH=1, stride=128)[0] / (16 * LANES),
        "l2_bytes_per_cycle": max(streams), "barrier": cycles("bar", 8)[0], "mbarrier": cycles("ping_pong")[0] / 2,
        "copy_bytes_per_cycle": engine, "tensor_copy": box - 16 * KIB / engine + dram - l2,
        "block": next(row["cycles"] for row in rows if row["probe"] == "blocks" and row["threads"] == 256),
        "warp_mma_share": 4 / (cycles("hmma_rate", 8, WIDTH=2)[0] / 2)}
    guessed = sorted(set(before) - set(found) - {"gpu", "arch", "measured", "note", "guessed", "takes"})
    return {**before, **{name: round(value, 3) for name, value in found.items()}, "measured": True, "guessed": guessed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--compile", action="store_true", help="write the cubins to the folder --json")
    parser.add_argument("--table", action="store_true", help="write the table of the GPU from the record --json")
    args = parser.parse_args()
    if args.table:
        record = json.loads(args.json.read_text(encoding="utf-8"))
        made = table(record["found"], record["device"]["sm_count"], json.loads(TABLE.read_text()))
        TABLE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        return
    if args.compile:
        args.json.mkdir(parents=True, exist_ok=True)
        for number, (probe, compiled) in enumerate(zip(PROBES, in_parallel(Probe.compiled, PROBES), strict=True)):
            (args.json / f"{number:02}_{probe.name}.cubin").write_bytes(compiled.code)
        return
    records.check_writable(args.json)
    gpu = device.require()
    in_parallel(Probe.compiled, PROBES)
    rows: list[dict[str, Any]] = []
    with device.activated(gpu.index):
        bench = Bench(gpu)
        for probe in PROBES:
            try:
                rows += bench.rows(probe)
            except PeakgemmError as error:  # the others are wanted none the less
                rows.append({"probe": probe.name, "macros": dict(probe.macros), "error": str(error)})
            print(*(f"{row['probe']} {row['macros']} {row.get('warps')} warps {row.get('stride')}: "
                    f"{row.get('cycles', row.get('error'))}" for row in rows[-1:]), flush=True)
        for threads, shared in ((256, 200 * KIB), (256, 100 * KIB), (1024, 100 * KIB), (128, 40 * KIB)):
            rows.append(bench.turnaround(threads, shared))
    records.write(args.json, records.record(gpu, ARCH, [{"found": rows}]))
    print(f"Record written to {args.json}")


if __name__ == "__main__":
    main()
