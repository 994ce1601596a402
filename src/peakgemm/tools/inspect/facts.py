"""The figures of a subject, ready for JSON: what tables, comparison and page show. docs/inspect.md tells each field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...errors import InvalidValue
from ...runtime.architectures import ARCHITECTURES, Architecture
from ...runtime.main_loop import issue_share
from ...sass.banks import BankModel, bank_model
from ...sass.encoding import Word
from ...sass.facts import Mix, loads_in_a_row, mix
from ...sass.loops import Loop
from ...sass.opcodes import PIPES
from ..bench.occupancy import occupancy
from ..bench.roofline import bound_tflops, bytes_per_flop
from .listing import Listing
from .subject import Subject

#: Bytes of code below which a main loop stays in the instruction cache of an H100: 52 KB ran with 0.19 to 0.24 stall
#: cycles an instruction for want of instructions, 26 KB with 0.01.
CODE_ADVICE = 32 << 10
_COUNT = 32  # low bit of the registers that setmaxnreg asks for
#: Nsight Compute's counters of executed warp instructions, and the opcode that each counts.
PROFILED = {
    "smsp__sass_inst_executed_op_shared_ld.sum": "LDS",
    "smsp__sass_inst_executed_op_shared_st.sum": "STS",
    "smsp__sass_inst_executed_op_ldgsts.sum": "LDGSTS",
    "smsp__sass_inst_executed_op_ldsm.sum": "LDSM",
    "smsp__sass_inst_executed_op_global_ld.sum": "LDG",
    "smsp__sass_inst_executed_op_global_st.sum": "STG",
    "smsp__sass_inst_executed_op_local_ld.sum": "LDL",
    "smsp__sass_inst_executed_op_local_st.sum": "STL",
}


def facts(subject: Subject, listing: Listing) -> dict[str, Any]:
    """The figures of ``subject``."""
    notes = [*subject.notes, *listing.notes]
    limits = ARCHITECTURES.get(subject.arch)
    if limits is None:
        notes.append(f"{subject.arch} is not in the table of architectures: no occupancy, no roofline. All else holds.")
    if dealt := _dealt(listing):
        notes.append(f"setmaxnreg deals the registers anew: {', '.join(map(str, dealt))} a thread.")
    loop, model = None, None
    if listing.loop is not None:
        loop = _loop(listing, listing.loop)
        model = bank_model(listing.turn, subject.arch) if listing.rule is not None else None
    what = mix(listing.turn) if listing.loop else None
    return {
        "subject": {
            "label": subject.label, "kind": subject.kind, "function": subject.function, "arch": subject.arch,
            "config": subject.config.to_json() if subject.config else None,
            "config_label": subject.config.label() if subject.config else None, "others": list(subject.others)},
        "resources": _resources(subject, listing, limits, notes),
        "code": {"instructions": len(listing.code), "code_bytes": 16 * len(listing.code),
                 "live_registers": max(listing.live.values(), default=None),
                 "loops": [{"header": one.header, "instructions": len(one.places),
                            "own_ffma": sum(listing.program.words[place].is_ffma for place in one.own)}
                           for one in listing.program.loops]},
        "loop": loop,
        "registers_read": _reads(listing, model),
        "roofline": _roofline(subject, limits, what, model),
        "notes": notes,
    }


def _dealt(listing: Listing) -> list[int]:
    """What setmaxnreg gives to threads, and leaves others, most first: live registers may exceed those of the
    launch."""
    return sorted({word.rest >> _COUNT & 0xFF for word in listing.code if word.name == "USETMAXREG"}, reverse=True)


def _resources(subject: Subject, listing: Listing, limits: Architecture | None, notes: list[str]) -> dict[str, Any]:
    local = Counter(word.name for word in listing.code if word.name in ("LDL", "STL"))
    figures: dict[str, Any] = {
        "registers": subject.registers, "spill_bytes": subject.spill_bytes, "stack_bytes": subject.stack_bytes,
        "local_loads": local["LDL"], "local_stores": local["STL"], "threads": subject.threads,
        "static_shared": subject.static_shared, "dynamic_shared": subject.dynamic_shared,
        "blocks_per_sm": None, "warps_per_sm": None, "occupancy": None, "limited_by": None}
    if limits is None or subject.registers is None:
        return figures
    if subject.threads is None:
        notes.append("Threads a block are not in the cubin: pass --threads for the occupancy.")
        return figures
    if subject.dynamic_shared is None:
        notes.append("Dynamic shared memory is not in a cubin: the occupancy is that of none; pass --shared.")
    try:
        fit = occupancy(limits, subject.threads, subject.registers, subject.dynamic_shared or 0, subject.static_shared)
    except InvalidValue as error:
        notes.append(f"No block fits: {error}.")
        return figures
    return {**figures, "blocks_per_sm": fit.blocks_per_sm, "warps_per_sm": fit.warps_per_sm, "occupancy": fit.fraction,
            "limited_by": fit.limited_by}


def _loop(listing: Listing, loop: Loop) -> dict[str, Any]:
    turn = listing.turn
    what = mix(turn)
    live = [line.live for line in listing.lines if line.live is not None]
    stalls, pipes = Counter(word.control.stall for word in turn), Counter(word.pipe for word in turn)
    return {
        "why": listing.why, "header": loop.header, "instructions": what.instructions, "code_bytes": loop.code_bytes,
        "ffma": what.ffma, "ffma_fraction": what.ffma_fraction, "tensor": what.classes["tensor"],
        "classes": what.classes, "pipes": {name: pipes[name] for name in PIPES if pipes[name]}, "widths": what.widths,
        "opcodes": dict(Counter(word.name for word in turn).most_common()),
        "profiler": _profiled(turn), "live_registers": max(live, default=None),
        "loads_in_a_row": loads_in_a_row(turn),
        "stalls": {str(cycles): stalls[cycles] for cycles in sorted(stalls)},
        "waits": sum(bool(word.control.waits) for word in turn),
        "reuse": sum(bool(word.control.reuse) for word in turn if word.name != "DEPBAR"),
    }


def _reads(listing: Listing, model: BankModel | None) -> dict[str, Any] | None:
    if listing.rule is None or model is None:
        return None
    return {"rule": listing.rule.name, "banks": listing.rule.banks, "issue_cycles": model.issue_cycles,
            "cycles_per_ffma": model.cycles_per_ffma, "ceiling": model.ceiling, "conflicts": model.conflicts,
            "reuse_hits": model.reuse_hits, "accumulators_moved": model.moved}


def _roofline(subject: Subject, limits: Architecture | None, what: Mix | None,
              model: BankModel | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    asked = bytes_per_flop(subject.config) if subject.config else _loop_bytes_per_flop(what)
    tensor = what is not None and what.classes["tensor"] > 0
    # The FP32 peak bounds no tensor cores; of the rung that uses them it is known what does.
    known = subject.kernel is not None and subject.kernel.peak != 1
    peak = limits.peak_tflops * subject.kernel.peak if subject.kernel and known else limits.peak_tflops
    issue = None if what is None or model is None or tensor else issue_share(
        what.instructions, model.ffmas, model.cycles_per_ffma, model.issue_cycles)
    return {
        "gpu": limits.gpu, "peak_tflops": peak, "bandwidth_gbs": limits.gpu_bandwidth_gbs, "bytes_per_flop": asked,
        "bound_tflops": bound_tflops(peak, limits.gpu_bandwidth_gbs, asked) if asked and (known or not tensor)
        else None,
        "issue_ceiling": issue, "issue_tflops": None if issue is None else issue * limits.peak_tflops,
        "shared_tflops": None if tensor or what is None else _shared_share(what, limits) * limits.peak_tflops or None,
    }


def _shared_share(what: Mix, limits: Architecture) -> float:
    """The share of the FP32 peak at which the loop's loads from shared memory come back, a pair of registers a cycle to
    all sub-partitions, without a bank conflict; 0: it loads nothing, or computes nothing."""
    pairs = sum(max(int(wide) // 64, 1) * count for wide, count in what.widths.get("LDS", {}).items())
    issue = 128 // limits.fp32_lanes_per_sm  # cycles of an FFMA
    return min(1.0, issue * what.ffma / (limits.sub_partitions * pairs)) if pairs else 0.0


def _loop_bytes_per_flop(what: Mix | None) -> float | None:
    """What a thread of the loop loads from global memory for each FLOP of its FFMAs; None: nothing, or by TMA."""
    if what is None or not what.ffma:
        return None
    bits = sum(int(wide) * count for opcode in ("LDG", "LDGSTS") for wide, count in what.widths.get(opcode, {}).items())
    return bits / 8 / (2 * what.ffma) if bits else None


def _profiled(loop: Sequence[Word]) -> dict[str, int]:
    """What the profiler's counters of `PROFILED` gain in one turn of a loop, for each warp that takes it.

    ``smsp__inst_executed.sum`` is all of them. A guard that is false for the whole warp still counts as executed; of
    blocks that a branch leaves out, and of ``@!PT``, that is not so: see docs/inspect.md.
    """
    opcodes = Counter(word.name for word in loop if not word.never)
    return {"smsp__inst_executed.sum": len(loop),
            **{counter: opcodes[name] for counter, name in PROFILED.items() if opcodes[name]}}
