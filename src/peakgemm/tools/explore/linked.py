"""SASS of the main loop for a trace: each line with the PTX instruction and the source line that it came from.

Of a kernel without a loop it is the whole SASS."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidValue, MissingComponent
from ...kernels.registry import Kernel
from ...runtime.source import SUFFIXES as CUDA
from ..inspect.files import from_file
from ..inspect.listing import Line
from ..inspect.named import named
from ..inspect.subject import Subject
from ..inspect.view import view
from ..simulator.front.sources import display
from .kernels import Launch, problem_for
from .trace import shown

WINDOW = 60  # instructions that PTX may have more on one side than on the other


def rung_sass(kernel: Kernel, trace: dict[str, Any], arch: str = "sm_90",
              shape: tuple[int, int, int] | None = None) -> dict[str, Any]:
    """The ``sass`` of a rung's trace: of the compilation that the simulator ran, for sm_NN instead of as PTX."""
    m, n, k = shape or problem_for(kernel, arch)
    return _listed(named(str(kernel.number), arch, shape=f"{m}x{n}x{k}"), trace)


def own_sass(launch: Launch, trace: dict[str, Any]) -> dict[str, Any]:
    """The ``sass`` of a file's trace; where it cannot be had (nvJitLink is missing, ptxas refuses), why."""
    if not isinstance(launch.source, Path):
        return {"lines": [], "notes": ["SASS is shown for .cu and .ptx files."]}
    cuda = launch.source.suffix in CUDA
    try:
        subject = from_file(launch.source, launch.arch, launch.entry or "", launch.macros if cuda else None,
                            launch.include if cuda else ())
        return _listed(subject, trace)
    except (InvalidValue, MissingComponent) as error:
        said = str(error).replace(str(launch.source), launch.source.name)
        return {"lines": [], "notes": [f"No SASS: {said}."]}


def _listed(subject: Subject, trace: dict[str, Any]) -> dict[str, Any]:
    seen = view(subject, with_text=True)
    files = [one["name"] for one in trace["files"]]
    of_line = _instructions(seen.listing.ptx, [one["text"] if one else "" for one in trace["code"]])
    lines = [_line(line, files, of_line) for line in seen.listing.lines]
    facts = seen.facts
    loop = facts["loop"] or {}
    return {"lines": lines, "part": seen.listing.part, "notes": [str(note) for note in facts["notes"]],
            "registers": facts["resources"]["registers"], "spill_bytes": facts["resources"]["spill_bytes"],
            "why": loop.get("why"), "ffma_fraction": loop.get("ffma_fraction"),
            "cycles_per_ffma": (facts["registers_read"] or {}).get("cycles_per_ffma")}


def _line(line: Line, files: Sequence[str], of_line: dict[int, int]) -> dict[str, Any]:
    listed = line.to_json()
    if line.ptx in of_line:
        listed["code"] = of_line[line.ptx]
    file = shown(display(line.file)) if line.file else ""
    if file in files and line.line is not None:
        listed["at"] = [files.index(file), line.line]
    return listed


def _instructions(ptx: Sequence[str], code: Sequence[str]) -> dict[int, int]:
    """The instruction in ``code`` of each line of ``ptx``, the text that the cubin holds.

    Both come from one source, but two runs of the compiler may number registers differently: then instructions are
    taken to follow each other in the same order.
    """
    exact = _in_order(ptx, code, _plain)
    held = sum(bool(text) for text in code)
    return exact if 2 * len(exact) > held else _in_order(ptx, code, _skeleton)


def _in_order(ptx: Sequence[str], code: Sequence[str], of: Callable[[str], str]) -> dict[int, int]:
    known = [of(text) for text in code]
    times = Counter(known)
    where = {text: index for index, text in enumerate(known) if times[text] == 1}
    index_of: dict[int, int] = {}
    at = 0
    for number, line in enumerate(ptx, 1):
        text = of(line)
        if not text or text.startswith(".") or text.endswith(":"):
            continue
        index = where.get(text)
        if index is None and text in times:
            index = next((one for one in range(at, min(at + WINDOW, len(known))) if known[one] == text), None)
        if index is not None:
            index_of[number], at = index, index + 1
    return index_of


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text.split("//")[0].strip(" \t{}")).rstrip(";}")


def _skeleton(text: str) -> str:
    return re.sub(r"%([a-z]+)\d+", r"%\1", _plain(text))
