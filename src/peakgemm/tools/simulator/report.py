"""What a run found: faults, counts per instruction and per source line, totals."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from .core.counters import Counts
from .front.demangle import shown
from .front.ptx import Instruction

WAY = {"ld": "ld", "ldu": "ld", "ldmatrix": "ld", "st": "st", "stmatrix": "st", "cp": "st", "red": "red"}


@dataclass(slots=True)
class Fault:
    """One finding of the checks.

    ``threads`` are the first few ``((block x, y, z), (thread x, y, z))`` concerned; ``count`` is
    how many lane accesses of this instruction were found at fault in all; ``address`` is in bytes:
    within the block for shared memory, a device address for global memory.
    """

    kind: str
    message: str
    kernel: str
    file: str
    line: int
    ptx_line: int
    instruction: str
    threads: list[tuple[tuple[int, int, int], tuple[int, int, int]]]
    address: int | None = None
    count: int = 1

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else shown(self.kernel)
        threads = ", ".join(f"block {block} thread {thread}" for block, thread in self.threads[:2])
        more = f" ({self.count} times)" if self.count > 1 else ""
        tail = f"\n    {threads}" if threads else ""
        return (f"{where}: {self.kind}: {self.message}{more}\n"
                f"    kernel {shown(self.kernel)}, PTX line {self.ptx_line}: {self.instruction}{tail}")


@dataclass(slots=True)
class InstructionCounts(Counts):
    """Counts of one PTX instruction (executions, requests, wavefronts: per warp; threads: per lane)."""

    text: str = ""
    opcode: str = ""
    space: str = ""
    file: str = ""
    line: int = 0
    ptx_line: int = 0

    @classmethod
    def none_of(cls, ins: Instruction) -> InstructionCounts:
        """Of an instruction that has not been executed."""
        return cls(text=ins.text, opcode=ins.opcode, space=_space(ins.opcode), file=ins.file, line=ins.line,
                   ptx_line=ins.ptx_line)


@cache
def _space(opcode: str) -> str:
    """Where an instruction reads or writes; empty: nowhere in memory."""
    base, *parts = opcode.split(".")
    if base == "cp":
        return "global to shared" if "global" in parts else ""
    if base not in ("ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix"):
        return ""
    return next((part.split("::")[0] for part in parts if part.split("::")[0] in
                 ("shared", "global", "local", "param", "const")), "generic")


@dataclass(slots=True)
class Report:
    """The outcome of a run.

    ``counters`` maps names, the profiler's and short ones, to totals; ``stopped`` says why the run
    ended early (empty: it ran to the end); ``steps`` are instructions executed by groups of lanes,
    ``lane_instructions`` by lanes. ``printed`` is what the kernel printed, thread by thread in the order of the run.
    """

    kernel: str
    faults: list[Fault]
    counters: dict[str, int]
    instructions: list[InstructionCounts]
    stopped: str = ""
    steps: int = 0
    seconds: float = 0.0
    hot: list[tuple[str, int, int]] = field(default_factory=list)
    printed: str = ""

    @property
    def clean(self) -> bool:
        """Whether the run ended by itself and the checks found nothing."""
        return not self.faults and not self.stopped

    def by_line(self) -> dict[tuple[str, int], Counts]:
        """Counts summed per source line, ``{(file, line): counts}``."""
        out: dict[tuple[str, int], Counts] = {}
        for item in self.instructions:
            out.setdefault((item.file, item.line), Counts()).add(item)
        return dict(sorted(out.items()))

    def causes(self) -> list[str]:
        """The faults in words, one for each cause: those of one kind that name a source line in common are told by
        the first of them. A forgotten barrier is a race of several writes with several reads."""
        found: list[tuple[str, set[str], list[Fault]]] = []
        for fault in self.faults:
            lines, group = {f"{fault.file}:{fault.line}", *re.findall(r"\bat (\S+:\d+)", fault.message)}, [fault]
            for one in [one for one in found if one[0] == fault.kind and one[1] & lines]:
                found.remove(one)
                lines, group = one[1] | lines, one[2] + group
            found.append((fault.kind, lines, group))
        return [str(group[0]) + f"\n    and {len(group) - 1} more of this cause, in {', '.join(sorted(lines))}"
                * (len(group) > 1) for _, lines, group in found]

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return {"kernel": self.kernel, "stopped": self.stopped, "faults": [asdict(fault) for fault in self.faults],
                "counters": self.counters, "instructions": [asdict(item) for item in self.instructions],
                "seconds": self.seconds, **({"printed": self.printed} if self.printed else {})}

    def __str__(self) -> str:
        lines = [f"{shown(self.kernel)}: {len(self.faults)} fault{'s' * (len(self.faults) != 1)}"
                 + (f", stopped: {self.stopped}" if self.stopped else "")]
        lines += self.causes()
        lines += [f"  {name:<68}{value:>16,}" for name, value in self.counters.items() if value]
        if self.printed:
            lines += ["printed:", self.printed.rstrip("\n")]
        return "\n".join(lines)


def totals(instructions: list[InstructionCounts]) -> dict[str, int]:
    """Counter totals under the profiler's metric names and under short ones."""
    short = dict.fromkeys(
        ("warp_instructions", "lane_instructions", "divergent_branches", "fma_lane_instructions",
         "shared_loads", "shared_stores", "shared_wavefronts", "shared_wavefronts_ideal", "shared_bytes",
         "global_requests", "global_sectors", "global_sectors_ideal", "global_bytes", "barriers", "bulk_copies",
         "bulk_bytes", "wgmma_instructions", "wgmma_flops", "wgmma_shared_bytes"), 0)
    metric: dict[str, int] = {}

    def add(name: str, value: int) -> None:
        metric[name] = metric.get(name, 0) + value

    for way in ("ld", "st"):
        for name in (f"smsp__sass_inst_executed_op_shared_{way}.sum",
                     f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{way}.sum",
                     f"l1tex__t_requests_pipe_lsu_mem_global_op_{way}.sum",
                     f"l1tex__t_sectors_pipe_lsu_mem_global_op_{way}.sum"):
            metric[name] = 0
    for item in instructions:
        if not item.counted:
            continue
        c, parts = item, item.opcode.split(".")
        short["warp_instructions"] += c.executions
        short["lane_instructions"] += c.threads
        short["divergent_branches"] += c.divergent
        if parts[0] == "fma":
            short["fma_lane_instructions"] += c.threads
        if parts[0] in ("bar", "barrier"):
            short["barriers"] += c.executions
        if "mma_async" in parts:  # of a warpgroup: four warps
            m, n, k = map(int, re.findall(r"\d+", next(part for part in parts if re.fullmatch(r"m\d+n\d+k\d+", part))))
            short["wgmma_instructions"] += c.executions // 4
            short["wgmma_flops"] += c.executions // 4 * 2 * m * n * k
            short["wgmma_shared_bytes"] += c.bytes
        if not (c.requests or c.copies):
            continue
        if "bulk" in parts:
            short["bulk_copies"] += c.copies
            short["bulk_bytes"] += c.bytes
            continue
        asynchronous = parts[0] == "cp"
        way = WAY.get(parts[0], "atom")
        ldgsts = "ldgsts_cache_access" if "ca" in parts else "ldgsts_cache_bypass"
        if c.wavefronts:
            short["shared_wavefronts"] += c.wavefronts
            short["shared_wavefronts_ideal"] += c.wavefronts_ideal
            short["shared_bytes"] += c.bytes
            if way == "ld":
                short["shared_loads"] += c.executions
            elif way == "st":  # cp.async writes count as stores
                short["shared_stores"] += c.copies if asynchronous else c.executions
            name = ldgsts if asynchronous else "ldsm" if parts[0] == "ldmatrix" else f"shared_{way}"
            add(f"smsp__sass_inst_executed_op_{name}.sum", c.copies if asynchronous else c.executions)
            pipe = "smsp__sass_l1tex_data" if asynchronous else "l1tex__data"
            add(f"{pipe}_pipe_lsu_wavefronts_mem_shared_op_{ldgsts if asynchronous else way}.sum", c.wavefronts)
        if c.sectors:
            short["global_requests"] += c.requests
            short["global_sectors"] += c.sectors
            short["global_sectors_ideal"] += c.sectors_ideal
            short["global_bytes"] += c.bytes
            if not asynchronous:
                add(f"smsp__sass_inst_executed_op_global_{way}.sum", c.executions)
            kind = "ld" if asynchronous else way  # the profiler counts the global half of a copy as a load
            add(f"l1tex__t_requests_pipe_lsu_mem_global_op_{kind}.sum", c.requests)
            add(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{kind}.sum", c.sectors)
    metric["memory_l1_wavefronts_shared"] = short["shared_wavefronts"]
    metric["memory_l1_wavefronts_shared_ideal"] = short["shared_wavefronts_ideal"]
    metric["memory_l2_theoretical_sectors_global"] = short["global_sectors"]
    metric["memory_l2_theoretical_sectors_global_ideal"] = short["global_sectors_ideal"]
    return {**short, **metric}
