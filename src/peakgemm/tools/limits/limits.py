"""What a kernel keeps busy, its time by the model, what limits it, and what to try next."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path as File
from typing import Any

from ...errors import InvalidValue
from ..inspect.listing import ptx_text
from .execute import Path
from .launches import Launch
from .model import SCHEDULERS, Outcome, Sm
from .semantics import operands
from .steps import kind_of, read_costs

_TABLES = File(__file__).parent
_SM_MEMORY = 256 << 10  # bytes of L1 and shared memory together
#: A resource that is busy for this share of the time limits the kernel: below it Nsight Compute speaks of latency.
FULL = 0.6
#: What a limit asks for, and the rung that shows it.
NEXT = {
    "issue slots": "Let each thread compute a larger tile, so that more of what issues is FFMA (14, and 16 for SASS)",
    "FP32 pipe": "Nothing but FFMAs is left: tensor cores are the way past the peak (rung 17)",
    "tensor pipe": "The tensor cores are busy: fewer products, or narrower operands",
    "shared memory": "Fewer wavefronts for an FFMA: pad or swizzle against conflicts (04), load 16 bytes (05), give a "
                     "thread a larger tile (06, 07), let lanes share addresses (12)",
    "L1": "Fewer lines a request: neighbouring lanes read neighbouring words (01); keep tiles in registers (02) and in "
          "shared memory (03)",
    "L2": "More arithmetic for a byte: a larger block tile (06, 14)",
    "DRAM": "More arithmetic for a byte, or order the blocks so that they share what L2 holds (14)",
    "long scoreboard": "Ask global memory earlier: two buffers (10), copies stages ahead (13), or more warps an SM",
    "short scoreboard": "Load the next fragments while this one multiplies (11), or conflict less (04, 09)",
    "barrier": "Fewer barriers or shorter waits: two buffers with one barrier a turn (10), mbarriers and warps that "
               "only copy (15)",
    "mio throttle": "Fewer and wider accesses to shared memory for an FFMA (05, 07, 12)",
    "lg throttle": "Fewer global requests, of neighbouring words (01), through shared memory (03)",
    "wait": "More independent work a warp: a larger thread tile (07), or more warps",
    "not selected": "Fewer instructions besides FFMA: a larger thread tile (14), SASS built anew (16)",
}


def table(gpu: str) -> dict[str, Any]:
    """Latencies and rates of a GPU.

    Raises:
        InvalidValue: a GPU without numbers.
    """
    known = sorted(one.stem for one in _TABLES.glob("*.json"))
    if gpu not in known:
        raise InvalidValue(f"--gpu {gpu}: there are no latencies of it, and none are guessed; there are for "
                           f"{', '.join(known)}. On such a GPU, python -m lab.latencies measures them")
    return dict(json.loads((_TABLES / f"{gpu}.json").read_text(encoding="utf-8")))


def counts(path: Path) -> Counter[str]:
    """What a block asks for, by the instructions that run: under the names of `lab.counters`."""
    found: Counter[str] = Counter(instructions=sum(path.executed().values()))
    for place, size, lanes, wavefronts, sectors in _accesses(path):
        name = path.program.words[place].name
        kind = {"LDS": "shared_loads", "STS": "shared_stores", "LDGSTS": "ldgsts", "LDG": "global_load_requests",
                "STG": "global_store_requests"}.get(name)
        if kind is not None and lanes:
            found[kind] += 1
            found[f"{kind} of {8 * size} bits"] += 1
        found["shared_wavefronts_" + {"LDS": "ld", "STS": "st"}.get(name, "others")] += wavefronts
        if name in ("LDG", "LDGSTS", "STG"):
            found[f"global_{'store' if name == 'STG' else 'load'}_sectors"] += sectors
    return found


def _accesses(path: Path) -> Iterator[tuple[int, int, int, int, int]]:
    for one in path.segments:
        for place, access in one.accesses.items():
            for warp, lanes in enumerate(access.lanes):
                yield (place, access.size, lanes, access.wavefronts[warp] if access.wavefronts else 0,
                       sum(bits.bit_count() for _, bits in access.lines[warp]) if access.lines else 0)


def limits(launch: Launch, gpu: str = "h100", timeline: bool = False) -> dict[str, Any]:
    """Everything that `peakgemm limits` shows of a launch; ``timeline``: what warps issue in a stretch of time, too.

    Raises:
        InvalidValue: a GPU without numbers or of another architecture; a kernel that cannot be followed.
    """
    known = table(gpu)
    if known["arch"] != launch.arch.name:
        raise InvalidValue(f"--gpu {gpu} is {known['arch']}, the kernel is for {launch.arch.name}: compile it for "
                           f"{known['arch']}")
    arch, fit = launch.arch, launch.occupancy
    sms, clock = arch.gpu_sms, arch.gpu_mhz * 1e6
    first = launch.path(0)
    paths = [first, launch.path(sms % launch.blocks) if fit.blocks_per_sm > 1 and launch.blocks > 1 else first]
    program = launch.program
    loop = program.loop_with_most(lambda word: "GMMA" in word.name) or program.loop_with_most(
        lambda word: word.is_ffma) or program.loop_with_most(lambda word: True)
    places = loop.places if loop else range(len(program.words))
    cache = max(_SM_MEMORY - fit.blocks_per_sm * fit.shared_per_block, 8 << 10)

    def generation(resident: int) -> Outcome:
        return Sm([paths[one % 2] for one in range(resident)], known, arch.name, cache, places, timeline).run()

    waves, rest = divmod(launch.blocks, sms * fit.blocks_per_sm)
    whole = generation(fit.blocks_per_sm) if waves else None
    resident = -(-rest // sms)
    last = whole if whole and resident == fit.blocks_per_sm else generation(resident) if rest else None
    shown = whole or last
    assert shown is not None  # a grid has a block
    cycles: float = sum(times * (one.cycles + known["block"]) for times, one in ((waves, whole), (1, last)) if one)
    flops = launch.flops or _flops(first) * launch.blocks
    floors = _floors(launch, first, known, places)
    cycles = max(cycles, *floors.values())
    seconds = cycles / clock
    busy = {name: each / cycles for name, each in sorted(floors.items(), key=lambda pair: -pair[1])}
    limiter = _limiter(shown, busy)
    found = counts(first)
    return {
        "label": launch.label, "gpu": known["gpu"], "measured_latencies": known["measured"], "tflops": flops / seconds
        / 1e12, "ms": 1e3 * seconds, "cycles": cycles, "turn_cycles": shown.turn, "flops": flops, "limiter": limiter,
        "next": NEXT[limiter], "busy": busy, "stalls": dict(shown.stalls),
        "blocks": launch.blocks, "blocks_per_sm": fit.blocks_per_sm, "occupancy": fit.fraction,
        "limited_by": fit.limited_by, "waves": launch.blocks / (sms * fit.blocks_per_sm),
        "counts": {name: launch.blocks * value for name, value in sorted(found.items())},
        "widened": widened(launch), "guessed": sorted(first.guessed)[:3],
        **({"timeline": shown.issued} if timeline else {})}


def widened(launch: Launch) -> list[str]:
    """Where the accesses that run are others than the PTX's, which `peakgemm simulate` counts: what ptxas made."""
    said = []
    text = "\n".join(ptx_text(launch.cubin))
    for what, ptx, name in (("loads from shared memory", r"ld\.(?:volatile\.)?shared", "LDS"),
                            ("stores to shared memory", r"st\.(?:volatile\.)?shared", "STS"),
                            ("global loads", r"ld\.global(?:\.nc)?", "LDG")):
        asked = Counter(int(bits) // 8 * int(count or 1) for count, bits in re.findall(
            rf"\b{ptx}(?:\.v([24]))?\.[a-z](\d+)\b", text))
        runs = Counter(max((int(one) for one in operands(launch.texts[place])[1] if one in ("64", "128")), default=32)
                       // 8 for place, word in enumerate(launch.program.words) if word.name == name and not word.never)
        if asked and runs and max(runs) > max(asked):
            each = max(runs) // max(asked)
            said.append(f"ptxas joins {what}: {each} of {max(asked)} bytes in the PTX run as one of {max(runs)} "
                        f"({asked[max(asked)]} instructions as {runs[max(runs)]})")
    return said


def _flops(path: Path) -> float:
    """Operations of the FFMAs of a block."""
    return sum(64.0 * times for place, times in path.executed().items() if path.program.words[place].is_ffma)


def _floors(launch: Launch, path: Path, known: Mapping[str, Any], places: Any) -> dict[str, float]:
    """Cycles of the busiest SM by each resource alone."""
    words, executed = launch.program.words, path.executed()
    reads = read_costs(path, places, launch.arch.name)
    kinds = {place: kind_of(launch.texts[place]) for place in executed}
    fma = sum(times * (1 + reads.get(place, 0.0)) for place, times in executed.items() if words[place].is_ffma)
    tensor = sum(times * kinds[place][1] for place, times in executed.items() if kinds[place][0] == "tensor")
    shared, lines, sectors = 0, 0.0, 0
    for one in path.segments:
        for access in one.accesses.values():
            shared += sum(access.wavefronts)
            for warp in access.lines:
                lines += len(warp) * known["tag_cycles"]
                sectors += sum(bits.bit_count() for _, bits in warp)
    mine = -(-launch.blocks // launch.arch.gpu_sms)
    unique = len({line for one in path.segments for access in one.accesses.values() for warp in access.lines
                  for line, _ in warp})
    each = {"issue slots": sum(executed.values()) / SCHEDULERS, "FP32 pipe": fma / SCHEDULERS,
            "tensor pipe": tensor / SCHEDULERS, "shared memory": shared, "L1": max(lines, sectors / 4),
            "L2": 128 * unique / known["l2_bytes_per_cycle"]}
    cycles = {name: value * mine for name, value in each.items() if value}
    if launch.moved:
        cycles["DRAM"] = launch.moved / (launch.arch.gpu_bandwidth_gbs * 1e9) * launch.arch.gpu_mhz * 1e6
    return cycles


def _limiter(shown: Outcome, busy: Mapping[str, float]) -> str:
    """The resource that is busy for most of the time, else the reason for which warps wait most."""
    name, share = next(iter(busy.items()))
    if share >= FULL:
        return name
    return max((one for one in shown.stalls if one in NEXT and one != "not selected"), key=shown.stalls.__getitem__,
               default=name)
