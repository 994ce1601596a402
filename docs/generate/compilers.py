"""What each release of NVRTC makes of the kernels, of lab/compilers.py: what differs, and what none compiles well."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from docs.generate.markdown import Row, grid
from peakgemm.kernels.patched import REBUILT

#: From so much of the largest share on, shares differ: within it the loops are the same but for a few instructions.
DIFFERS = 0.02


def compilers_table(record: Row) -> str:
    """A row for each kernel whose compilations differ, a column each release; the others in one line."""
    rows = record["found"]
    releases = list(rows[0]["releases"])
    different = [row for row in rows if _differs(list(row["releases"].values()))]
    table = grid(("kernel", *releases), [
        (f"{row['family']} {row['kernel']}", *(_cell(row["releases"][one]) for one in releases)) for row in different])
    bad = [f"{row['family']} {row['kernel']} ({_worst(list(row['releases'].values()))})"
           for row in rows if all(map(_faults, row["releases"].values()))]
    alike = (f"\n{len(rows) - len(different)} other kernels of {len(rows)} are the same by all {len(releases)} "
             f"releases: spills, shares to {100 * DIFFERS:.0f} %, what the choice says of them.\n")
    return table + alike + (f"\nNo release compiles these well: {'; '.join(bad)}.\n" if bad else
                           "\nEvery kernel is compiled without spills by one release at least.\n")


def _faults(facts: Mapping[str, Any]) -> list[str]:
    """What is wrong with a compilation, in words; nothing mostly."""
    if "failed" in facts:
        return ["does not compile"]
    return ([f"{facts['spill_bytes']} bytes spilled"] if facts["spill_bytes"] else []) + (
        ["falls short"] if "shortfall" in facts else [])


def _worst(found: list[Mapping[str, Any]]) -> str:
    spills = [facts["spill_bytes"] for facts in found if facts.get("spill_bytes")]
    return f"{min(spills)} to {max(spills)} bytes spilled" if len(set(spills)) > 1 else ", ".join(_faults(found[-1]))


def _differs(found: list[Mapping[str, Any]]) -> bool:
    shares = [facts.get("share", 0.0) for facts in found]
    notes = [facts.get("note", "").startswith(REBUILT) for facts in found]
    return (len({tuple(_faults(facts)) for facts in found}) > 1 or len(set(notes)) > 1
            or max(shares) - min(shares) > DIFFERS * max(shares))


def _cell(facts: Mapping[str, Any]) -> str:
    """The loop's share of the FP32 peak and registers a thread, and in bold what is wrong."""
    share = [f"{100 * facts['share']:.1f} %"] if "share" in facts else []
    registers = [str(facts["registers"])] if "registers" in facts else []
    return ", ".join([*share, *registers, *(f"**{fault}**" for fault in _faults(facts))])


def speed_table(record: Row) -> str:
    """How many times as fast as cuBLAS by each compiler: a suite's geometric mean, or of one suite each product. Last,
    the slowest compiler over the fastest."""
    rows = record["found"]
    names = list(rows[0]["ratios"])
    suites = dict.fromkeys(row["suite"] for row in rows)
    by = "suite" if len(suites) > 1 else "name"
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for row in rows:
        groups.setdefault((row["precision"], row[by]), []).append(row["ratios"])
    lines = []
    for (precision, what), ratios in sorted(groups.items(), key=lambda item: item[0][0] != "ieee"):
        means = [geometric_mean(one[name] for one in ratios) for name in names]
        lines.append((precision, what, *(f"{mean:.3f}" for mean in means), f"{min(means) / max(means):.3f}"))
    return grid(("", by if by == "suite" else "product", *names, "slowest of fastest"), lines, left=(0, 1))
