"""Every exercise is missed as it is handed out, and met by the rung that it leads to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import here, run
from peakgemm.kernels.registry import rung
from peakgemm.tools.exercise import EXERCISES, check, exercise
from seldom import exhaustive

__all__ = ["here", "run"]
# What is missed at first, where the result is right.
MISSED = {1: {"global sectors"}, 4: {"shared wavefronts"}, 8: {"blocks per SM"},
          9: {"global sectors", "shared wavefronts"}, 10: {"barriers"}}


def missed(number: int, text: str, folder: Path) -> set[str]:
    file = folder / "mine.cu"
    file.write_text(text, encoding="utf-8")
    return {finding.goal.partition(",")[0] for finding in check(exercise(number), file) if not finding.met}


@pytest.mark.parametrize("number", [one if one in (0, 4, 8) else exhaustive(one) for one in EXERCISES])
def test_an_exercise_is_missed_at_first_and_met_by_its_rung(number: int, tmp_path: Path) -> None:
    one = exercise(number)
    assert missed(number, one.text(), tmp_path) == MISSED.get(number, {"right result"})
    assert missed(number, one.goal.path.read_text().replace(one.goal.entry, one.name), tmp_path) == set()


def test_what_is_still_wrong_is_told(tmp_path: Path) -> None:
    solved = rung(3).path.read_text().replace(rung(3).entry, "exercise_03")
    file = tmp_path / "mine.cu"
    for before, after, goal, says in (
            ("    __syncthreads();\n  }", "  }", "no fault, 64 x 64 x 96", "of a later turn of the loop"),
            ("ALIGNED || (n < N && k0 + ty < K)", "true", "no fault, 61 x 59 x 89", "out_of_bounds")):
        assert before in solved
        file.write_text(solved.replace(before, after))
        finding = next(one for one in check(exercise(3), file) if not one.met)
        assert finding.goal == goal and says in finding.said and "mine.cu:" in finding.said
    file.write_text(solved.replace("k0 += BK", "k0 += 0"))
    findings = list(check(exercise(3), file))
    assert "never_ending" in findings[0].said and "C[0, 0] is" in findings[1].said and len(findings) == 2
    file.write_text(exercise(4).text())
    said = [finding.said for finding in check(exercise(4), file) if not finding.met]
    line = next(i for i, text in enumerate(exercise(4).text().splitlines(), 1) if "acc = fmaf(" in text)
    assert len(said) == 1 and f"; line {line} has " in said[0]


@pytest.mark.parametrize("number", EXERCISES)
def test_a_file_tells_the_task_and_not_the_solution(number: int) -> None:
    one = exercise(number)
    text = one.text()
    assert "// Idea:" not in text and text.startswith(f"// Exercise {number:02}.") and one.name + "(" in text
    assert ("TODO" in text) == (one.cut is not None) and max(map(len, text.splitlines())) <= 120
    code = one.goal.path.read_text().replace(one.goal.entry, one.name)
    assert code.partition("#include")[2] not in text


def test_the_command_writes_once_and_exits_with_1_until_all_is_met(here: Path, run: Callable[..., Any]) -> None:
    code, out, _ = run("exercise")
    assert code == 0 and "04 padded tile" in out
    code, out, _ = run("exercise", "padded_tile")
    assert code == 0 and (here / "exercise_04.cu").read_text() == exercise(4).text() and "exercise 04 --check" in out
    code, out, _ = run("exercise", "04", "--check")
    assert code == 1 and "MISSED shared wavefronts" in out and "1 goal missed" in out
    (here / "exercise_04.cu").write_text(rung(4).path.read_text().replace(rung(4).entry, "exercise_04"))
    code, out, _ = run("exercise", "04", "--check")
    assert code == 0 and "MISSED" not in out and "\nDone. Compare with" in out and "exercise 05" in out


@pytest.mark.parametrize(("words", "says"), [
    (["04"], "exercise_04.cu is there already; check it with: peakgemm exercise 04 --check"),
    (["03", "--check"], "exercise_03.cu is not there; write it with: peakgemm exercise 03"),
    (["14"], "rung 14 has no exercise; 00 to 10 have one"), (["03-05"], "takes one rung, not the 3"),
    (["99"], "unknown rung 99")])
def test_what_the_command_refuses(here: Path, run: Callable[..., Any], words: list[str], says: str) -> None:
    (here / "exercise_04.cu").write_text("mine")
    code, _, complaint = run("exercise", *words)
    assert code == 2 and says in complaint and (here / "exercise_04.cu").read_text() == "mine"
