"""The bill of a main loop: what each thing costs, in per cent of the issue slots of a run.

An SM sub-partition can issue a warp instruction a cycle, so a run of C cycles has 4 C slots on each SM. FFMAs take
some; the rest is lost. What instructions take is counted; what they make others wait for are the cycles that a variant
of the loop without them saves (`loop_variants`), variant by variant, so that these parts telescope. Of the last
variant, which issues FFMAs that read nothing and NOPs, two lengths of K are run: what grows with K is its loop, the
rest the ends of tiles. What that loop still loses, the profiler's sampler tells by reason (`LOST`): samples in whose
cycle the scheduler issued nothing, or was held back by the dispatcher. Then the loop's cycles are known twice:
measured, and as slots taken and lost. The difference is ``unexplained``, the one part that is not right by
construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lab.bill.loop_variants import Variants
from peakgemm.errors import InvalidValue
from peakgemm.kernels.library import KERNELS
from peakgemm.problem import Problem
from peakgemm.tools.inspect.subject import Subject

SUB_PARTITIONS, LANES = 4, 32
#: A bill that leaves more of the slots unexplained does not add up.
TOLERANCE = 0.01
#: The parts of a bill in order, with what they are.
PARTS = {
    "ffma": "FFMAs of the product",
    "edges": "FFMAs of tiles beyond the edge of C",
    "loads": "slots: loads from shared memory",
    "copies": "slots: copies to shared memory",
    "barriers": "slots: barriers",
    "branches": "slots: branches",
    "moves": "slots: moves, constants",
    "integer": "slots: addresses, counters",
    "padding": "slots: NOPs, never run",
    "other_warps": "slots: warps that copy, waits again",
    "bank_conflicts": "register bank conflicts",
    "operand_reads": "register reads that the model lacks",
    "load_returns": "loads beyond their slots: write-back, waits",
    "copy_waits": "copies beyond their slots",
    "other_waits": "other instructions beyond theirs",
    "barrier_waits": "waits at barriers, for stages",
    "fetch": "instructions not there: fetch, branches",
    "fixed_stalls": "fixed stalls that no other warp covers",
    "dispatch": "held back by the dispatcher",
    "idle_sms": "SMs that are done before the last one",
    "ends": "ends of tiles, launch: no loop runs",
    "unexplained": "not explained",
}
#: The part that each step of `loop_variants` tells, by what it saves.
_SAVED = {"reads": "bank_conflicts", "loads": "load_returns", "copies": "copy_waits", "others": "other_waits",
          "waits": "barrier_waits", "operands": "operand_reads"}
#: The part that a slot lost in the last variant belongs to, by the sampler's reason; all others are waits for memory or
#: another warp, of which that variant has those at barriers.
LOST = {"no_inst": "fetch", "branch_resolving": "fetch", "imc": "fetch", "wait": "fixed_stalls", "math": "fixed_stalls"}
_OTHERS_LOST, _DISPATCH = "barrier_waits", "dispatch"


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch must do: turns of the main loop a block, summed over all of them (``turns``) and over those of the
    SM with the most (``busiest``); ``warps`` compute in each block. ``useful``: warp-wide FFMAs of the product."""

    turns: float
    busiest: float
    warps: int
    useful: float


def work(subject: Subject, variants: Variants, problem: Problem, sm_count: int) -> Work:
    """The work of ``subject`` for ``problem`` on a GPU with ``sm_count`` SMs.

    Raises:
        InvalidValue: a loop whose FFMAs are no whole k-steps, or a kernel of no known launch.
    """
    config, kernel = subject.config, subject.kernel
    if config is None or kernel is None or (subject.kind != "rung" and not kernel.family.tiled):
        raise InvalidValue(f"{subject.label}: no bill; there are bills for rungs and for the kernels "
                           f"{', '.join(one.name for one in KERNELS if one.family.tiled)}")
    steps = -(-problem.k // config.bk)
    each, loop = config.bk * config.tm * config.tn // config.slices, variants.slots["ffma"]
    if each % loop and loop % each:
        raise InvalidValue(f"{subject.label}: {variants.slots['ffma']} FFMAs in the loop are no whole k-steps of "
                           f"{config.bk} x {config.tm} x {config.tn}; no bill")
    a_step = each / loop
    if kernel.family.tiled:
        plan = kernel.family.schedule(config, problem, sm_count)
        total = (plan.whole + plan.shared) * steps
        block = -(-plan.whole // plan.blocks) * steps
        if plan.parts:
            block += -(-plan.parts // plan.blocks) * -(-plan.shared * steps // plan.parts)
        busiest = block * -(-plan.blocks // sm_count)
    else:
        blocks = kernel.launches(config, problem, subject.arch, sm_count).kernels[0].blocks
        total, busiest = blocks * steps, -(-blocks // sm_count) * steps
    return Work(total * a_step, busiest * a_step, config.threads * config.slices // LANES,
                problem.m * problem.n * problem.k * problem.batch.count / LANES)


def static(subject: Subject, variants: Variants, done: Work) -> dict[str, Any]:
    """What a bill says without a GPU."""
    body = len(variants.body)
    assert subject.config is not None and subject.kernel is not None
    return {
        "kernel": subject.kernel.name, "label": subject.label, "function": subject.function,
        "number": subject.kernel.number if subject.kind == "rung" else None,
        "config": subject.config.to_json(), "config_label": subject.config.label(),
        "slots": variants.slots, "late_cycles": variants.late, "loop": [list(each) for each in variants.ranges],
        "turns": done.turns, "busiest_turns": done.busiest, "warps": done.warps,
        "predicted": {"ffma": done.turns * done.warps * variants.slots["ffma"],
                      "executed": done.turns * done.warps * body},
        "steps": [{"name": one.name, "changed": dict(one.changed)} for one in variants.steps]}


def parts(entry: Mapping[str, Any], done: Work, sm_count: int) -> dict[str, float]:
    """The parts of a bill, fractions of the issue slots that add up to 1, in the order of `PARTS`.

    ``entry`` has, beside what `static` says, ``samples_cycles``: cycles of each variant by its name, interleaved, and
    of the last variant with half of K (``half``). Where ncu ran, ``profiler``, as `beside` makes it, and ``sampled``
    for `lost_slots`. Without it the slots of warps that do not compute, and what the last variant loses, are not
    explained.
    """
    shares, last = relative(entry)
    slots: Mapping[str, int] = entry["slots"]
    all_slots = median(entry["samples_cycles"]["as it is"]) * SUB_PARTITIONS * sm_count
    found = dict.fromkeys(PARTS, 0.0)
    for name, count in slots.items():
        found[name] = count * done.turns * done.warps / all_slots
    taken = sum(found.values())
    found["edges"] = found["ffma"] - done.useful / all_slots
    found["ffma"] = done.useful / all_slots
    before = 1.0
    for name, part in _SAVED.items():
        if name in shares:
            found[part], before = before - shares[name], shares[name]
    # Cycles are a + b K: what half of K saves is half of the loop's. They are those of the SM that ends last.
    loop = 2 * (shares[last] - shares["half"])
    mean = loop * done.turns / (done.busiest * sm_count)
    if seen := entry.get("profiler"):
        mean = loop * seen["last_active"]
        # What grows with K and is not in the loop.
        others = (2 * (seen["executed"] - seen["executed_half"]) - entry["predicted"]["executed"]) / all_slots
        found["other_warps"] = others
        taken += others
    lost = {part: fraction * mean for part, fraction in lost_slots(entry.get("sampled")).items()}
    for part, slots_lost in lost.items():
        found[part] += slots_lost
    return found | {"idle_sms": loop - mean, "ends": shares[last] - loop,
                    "unexplained": mean - taken - sum(lost.values())}


def lost_slots(sampled: Mapping[str, Any] | None) -> dict[str, float]:
    """What the last variant's loop loses, by part of the bill: fractions of its slots.

    A warp is sampled in a cycle that has nothing to do with what it does. So of the samples in the loop those in whose
    cycle nothing was issued (``not_issued``, by reason) are as many as such cycles are of all. The dispatcher's stalls
    are not among them, but are a reason of their own (``dispatch``).
    """
    if sampled is None:
        return {}
    found = {_DISPATCH: sampled["dispatch"] / sampled["samples"]}
    for reason, count in sampled["not_issued"].items():
        part = LOST.get(reason, _OTHERS_LOST)
        found[part] = found.get(part, 0.0) + count / sampled["samples"]
    return found


def relative(entry: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """The cycles of each variant over those of the kernel as it is, the median of the rounds' ratios; and which one is
    the last, whose ``half`` that is."""
    whole = entry["samples_cycles"]["as it is"]
    found = {name: median(cycles / base for cycles, base in zip(each, whole, strict=True))
             for name, each in entry["samples_cycles"].items()}
    return found, next(name for name in reversed(_SAVED) if name in found)


def verdict(found: Mapping[str, float]) -> tuple[float, bool]:
    """What is not explained of the lost slots, and whether that is within `TOLERANCE`."""
    return found["unexplained"], abs(found["unexplained"]) <= TOLERANCE


def beside(counts: Sequence[Mapping[str, float]], entry: Mapping[str, Any]) -> dict[str, float]:
    """What the profiler counted of the kernel as it is, and over what the bill takes for granted: what the main loop
    executes, its FFMAs, and its cycles.

    ``counts``: of the kernel as it is with K and with half of it, then of the last variant. Of that, ``last_active`` is
    the time in which an SM has a block, over the time that grows with K: the mean of the SMs.
    """
    whole, half, last, last_half = counts
    cycles = median(entry["samples_cycles"]["as it is"])
    return {**whole, "executed_half": half["executed"],
            "last_active": (last["cycles_active"] - last_half["cycles_active"])
                           / (last["cycles_elapsed"] - last_half["cycles_elapsed"]),
            "executed_over_predicted": 2 * (whole["executed"] - half["executed"]) / entry["predicted"]["executed"],
            "ffma_over_predicted": whole["ffma"] / entry["predicted"]["ffma"],
            "cycles_over_measured": whole["cycles_elapsed"] / cycles}
