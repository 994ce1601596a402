"""The hazard checker: no false alarm on what the compiler makes, and every seeded fault found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run  # noqa: F401
from peakgemm.errors import InvalidValue
from peakgemm.sass.elf import Cubin
from peakgemm.sass.hazards import against, check, check_cubin
from peakgemm.sass.program import Program
from peakgemm.sass.schedule import states
from peakgemm.tools.simulator.front.sources import from_cuda
from sass_cases import FIXTURES, every_recipe_of_the_library, every_rung, of_fixture, of_rung, program
from seldom import exhaustive
from tests.support.mutate import draws


@pytest.mark.parametrize("number", [0, 3, 5, 7, 11, 13, 15, 17])
def test_no_false_alarm(number: int) -> None:
    assert check_cubin(of_rung(number)) == []


@pytest.mark.exhaustive
def test_no_false_alarm_on_any_kernel() -> None:
    of_the_library = (cubin for _, cubin in every_recipe_of_the_library())
    cubins = [*(cubin for cubin in every_rung() if cubin.arch == "sm_90"), *of_the_library]
    assert len(cubins) > 400
    for cubin in cubins:
        assert check_cubin(cubin) == [], list(cubin.kernels)


def missed(programs: list[Program], count: int, seed: int) -> list[str]:
    return [f"{original.name}: {fault.kind}, {fault.what}" for original, fault in draws(programs, count, seed)
            if not check(fault.program) and not against(fault.program, original)]


@pytest.mark.parametrize(("numbers", "count", "most"), [((3, 5), 100, 0), exhaustive((2, 3, 4, 5, 6, 9), 1000, 10)])
def test_seeded_faults_are_found(numbers: tuple[int, ...], count: int, most: int) -> None:
    lost = missed(list(map(program, numbers)), count, seed=count)
    assert len(lost) <= most, lost


def changed(original: Program, place: int, **control: int) -> Program:
    return original.with_block(range(place, place + 1), [original.words[place].with_control(**control)])


def first(original: Program, name: str) -> int:
    """The place of the first instruction of that name."""
    return next(place for place, word in enumerate(original.words) if word.name == name)


def test_what_a_hazard_says() -> None:
    original = program(5)
    ffma, load = first(original, "FFMA"), first(original, "LDG")
    hazard, = check(changed(original, ffma, write_barrier=6))
    assert (hazard.rule, hazard.address, hazard.message) == ("control", ffma * 16,
                                                             "write barrier 6; there are 0 to 5")
    hazards = check(changed(original, load, write_barrier=7))
    assert {hazard.rule for hazard in hazards} == {"result"} and hazards[0].source == load * 16
    assert "(it sets no scoreboard)" in hazards[0].message
    with pytest.raises(InvalidValue, match="sm_80"):
        check(Program.of(of_rung(3, "sm_80")))


def test_a_value_that_changes_is_found_against_the_original() -> None:
    original = program(5)
    words = list(original.words)
    place = next(place for place, word in enumerate(words) if word.name == "FFMA" and word.numbers[1] != 255)
    words[place] = words[place].with_numbers((*words[place].numbers[:3], words[place].numbers[1]))
    assert [hazard.rule for hazard in against(original.with_words(words), original)] == ["value"]
    assert against(original, original) == []


def test_command(tmp_path: Path, run) -> None:  # noqa: F811
    cubin = of_rung(5)
    original = Program.of(cubin)
    faulty = changed(original, first(original, "LDG"), write_barrier=7)
    contents = {"good": cubin.data, "bad": cubin.with_words(faulty.encode()), "short": cubin.data[:5000],
                "other": of_rung(3, "sm_80").data}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    for words, status, says in (("good", 0, "0 hazards in"), ("short", 2, "truncated"), ("other", 2, "sm_80"),
                                ("good --arch sm_80", 2, "is for sm_90, not for sm_80"), ("none", 2, "cannot be read")):
        name, *more = words.split()
        code, out, err = run("sass", "check", str(tmp_path / name), *more)
        assert (code, says in out + err) == (status, True), (words, out, err)
    code, out, _ = run("sass", "check", str(tmp_path / "bad"), "--json")
    assert (code, json.loads(out)["arch"], json.loads(out)["hazards"][0]["rule"]) == (1, "sm_90", "result")


#: Divisions, printf, assert and arithmetic of uniform values as anyone's kernels have them; HFMA2 beside compares.
COMMON = """#include <cassert>
#include <cstdio>
extern "C" __global__ void common(float* y, int* z, double d, int n) {
  assert(n > 0);
  for (int i = 0; i < n; ++i) y[i] = y[i] / (n + i) + rintf(y[i + 1]) + powf(y[2], y[3]);
  z[threadIdx.x] = z[threadIdx.x] / n + z[1] % (n + 3);
  if (y[0] > 3) printf("%d %f\\n", n, y[2] / d);
}
"""


def test_calls(tmp_path: Path) -> None:
    """Of functions in the kernel, of those of the driver (printf, assert), through pointers, and recursive ones."""
    common = tmp_path / "common.cu"
    common.write_text(COMMON)
    programs = []
    assert check_cubin(of_fixture("misc", "warp_ops")) == []  # where warps diverge
    for path, entry in ((FIXTURES / "calls.cu", "recursion"), (common, "common")):
        cubin = Cubin.read(from_cuda(path, entry, "sm_90", None, (), "cubin").code)
        assert check_cubin(cubin) == []
        programs += [Program.of(cubin, name) for name in cubin.kernels]
    assert {word.opcode for each in programs for word in each.words if word.name == "CALL"} == {0x343, 0x344, 0x944}
    for each in programs:  # what lies behind a pointer is checked as well: padding alone is not reached
        unreached = {each.words[place].name for start, block in each.blocks.items() if start not in states(each)
                     for place in block}
        assert unreached <= {"BRA", "NOP"}
    assert missed(programs, 100, seed=3) == []
