"""What each exercise asks, and its file: the source of a rung with lines left out, or of the rung before."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from ...errors import InvalidValue
from ...kernels.registry import Kernel, rung

ARCH = "sm_90"
_WIDTH = 110
_HOLE = ";  // TODO: what is missing here is the exercise"


@dataclass(frozen=True)
class Exercise:
    """``base``: the rung whose source one begins with; ``cut``: words of the first and of the last line that are left
    out of it; ``counters``: which of the goal's counters may not be exceeded; ``blocks``: whether as many blocks must
    fit an SM."""

    goal: Kernel
    base: Kernel
    cut: tuple[str, str] | None
    counters: tuple[str, ...]
    blocks: bool
    task: str

    @property
    def name(self) -> str:
        """Of the file and the kernel in it."""
        return f"exercise_{self.goal.number:02}"

    def text(self) -> str:
        """The file that is handed out, without the comment that tells the rung's idea.

        Raises:
            InvalidValue: the lines that are to be left out are not in the source.
        """
        lines = self.base.path.read_text(encoding="utf-8").replace(self.base.entry, self.name).splitlines()
        lines = lines[next(i for i, line in enumerate(lines) if not line.startswith("//")):]
        if self.cut is not None:
            places = [[i for i, line in enumerate(lines) if words in line] for words in self.cut]
            if not all(places):
                raise InvalidValue(f"{self.base.file} has no lines {self.cut}; mend exercises.json")
            first, last = places[0][0], places[1][-1]
            indent = lines[first][:len(lines[first]) - len(lines[first].lstrip())]
            indent = indent or lines[last][:len(lines[last]) - len(lines[last].lstrip())]
            lines[first:last + 1] = [f"{indent}{_HOLE}"]
        goals = ", ".join(["the right result", "no fault", *(f"at most the {name.replace('_', ' ')} of rung "
                                                            f"{self.goal.number:02}" for name in self.counters),
                           *["as many blocks per SM as that rung"] * self.blocks])
        macros = ", ".join(f"{name} = {value}" for name, value in self.goal.config_for(ARCH).macros().items()
                           if name != "ALIGNED" and any(re.search(rf"\b{name}\b", line) for line in lines))
        head = [f"Exercise {self.goal.number:02}.", "", self.task, f"Goal: {goals}.",
                f"Macros: {macros}; ALIGNED is 1 where tiles divide M, N and K, else 0. What else has no definition "
                "here is in src/peakgemm/kernels/include.",
                f"Check: peakgemm exercise {self.goal.number:02} --check"]
        return "\n".join([f"// {line}".rstrip() for part in head for line in textwrap.wrap(part, _WIDTH) or [""]]
                         + lines) + "\n"


def _read() -> dict[int, Exercise]:
    found = json.loads(Path(__file__).with_name("exercises.json").read_text(encoding="utf-8"))
    return {int(number): Exercise(rung(int(number)), rung(entry.get("from", int(number))),
                                  tuple(entry["cut"]) if "cut" in entry else None, tuple(entry["counters"]),
                                  "blocks" in entry, entry["task"]) for number, entry in found.items()}


EXERCISES = _read()


def exercise(number: int) -> Exercise:
    """The exercise on the way to a rung.

    Raises:
        InvalidValue: the rung has none.
    """
    if number not in EXERCISES:
        raise InvalidValue(f"rung {number:02} has no exercise; {min(EXERCISES):02} to {max(EXERCISES):02} have one")
    return EXERCISES[number]
