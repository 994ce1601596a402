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
from sass_cases import FIXTURES, every_kernel_of_the_library, every_rung, of_fixture, of_rung, program
from tests.support.mutate import draws


@pytest.mark.parametrize("number", [0, 3, 5, 7, 11, 13, 15, 18])
def test_no_false_alarm(number: int) -> None:
    assert check_cubin(of_rung(number)) == []


@pytest.mark.exhaustive
def test_no_false_alarm_on_any_kernel() -> None:
    count = 0
    for cubin in (*(one for one in every_rung() if one.arch == "sm_90"), *every_kernel_of_the_library()):
        assert check_cubin(cubin) == [], list(cubin.kernels)
        count += 1
    assert count > 400


def missed(programs: list[Program], count: int, seed: int) -> list[str]:
    return [f"{original.name}: {fault.kind}, {fault.what}" for original, fault in draws(programs, count, seed)
            if not check(fault.program) and not against(fault.program, original)]


def test_seeded_faults_are_found() -> None:
    assert missed([program(3), program(5)], 100, seed=1) == []


@pytest.mark.exhaustive
def test_a_thousand_seeded_faults() -> None:
    lost = missed([program(number) for number in (2, 3, 4, 5, 6, 9)], 1000, seed=2)
    assert len(lost) <= 10, lost


def changed(original: Program, place: int, **control: int) -> Program:
    words = list(original.words)
    words[place] = words[place].with_control(**control)
    return original.with_words(words)


def test_messages() -> None:
    original = program(5)
    places = [place for place, word in enumerate(original.words) if word.name == "FFMA"]
    found = check(changed(original, places[0], write_barrier=6))
    assert [(one.rule, one.address) for one in found] == [("control", places[0] * 16)]
    assert found[0].message == "write barrier 6; there are 0 to 5"
    load = next(place for place, word in enumerate(original.words) if word.name == "LDG")
    found = check(changed(original, load, write_barrier=7))
    assert {one.rule for one in found} == {"result"} and found[0].source == load * 16
    assert "(it sets no scoreboard)" in found[0].message


def test_other_architectures_are_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="sm_80: the hazard checker has latencies for sm_90 alone"):
        check(Program.of(of_rung(3, "sm_80")))


def test_command(tmp_path: Path, run) -> None:  # noqa: F811
    cubin = of_rung(5)
    good, bad, short, other = (tmp_path / name for name in ("good.cubin", "bad.cubin", "short.cubin", "other.cubin"))
    good.write_bytes(cubin.data)
    short.write_bytes(cubin.data[:5000])
    other.write_bytes(of_rung(3, "sm_80").data)
    original = Program.of(cubin)
    load = next(place for place, word in enumerate(original.words) if word.name == "LDG")
    bad.write_bytes(cubin.with_words(changed(original, load, write_barrier=7).encode()))

    code, out, _ = run("sass", "check", str(good))
    assert code == 0 and "0 hazards in" in out
    code, out, _ = run("sass", "check", str(bad), "--json")
    found = json.loads(out)
    assert code == 1 and found["arch"] == "sm_90" and found["hazards"][0]["rule"] == "result"
    code, _, err = run("sass", "check", str(short))
    assert code == 2 and "offset 0x" in err and "truncated" in err
    code, _, err = run("sass", "check", str(other))
    assert code == 2 and "sm_80" in err
    code, _, err = run("sass", "check", str(good), "--arch", "sm_80")
    assert code == 2 and "is for sm_90, not for sm_80" in err
    code, _, err = run("sass", "check", str(tmp_path / "none.cubin"))
    assert code == 2 and "cannot be read" in err
    assert good.read_bytes() == cubin.data


def test_a_value_that_changes_is_found_against_the_original() -> None:
    original = program(5)
    place = next(place for place, word in enumerate(original.words) if word.name == "FFMA" and word.numbers[1] != 255)
    word = original.words[place]
    words = list(original.words)
    words[place] = word.with_numbers((*word.numbers[:3], word.numbers[1]))
    found = against(original.with_words(words), original)
    assert [one.rule for one in found] == ["value"]
    assert against(original, original) == []


def test_no_false_alarm_where_warps_diverge() -> None:
    cubin = of_fixture("misc", "warp_ops")
    assert len(cubin.kernels) > 5
    assert check_cubin(cubin) == []


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


def test_calls(tmp_path: Path, run) -> None:  # noqa: F811
    """Of functions in the kernel, of those of the driver (printf, assert), through pointers, and recursive ones."""
    common = tmp_path / "common.cu"
    common.write_text(COMMON)
    names, programs = set(), []
    for path, entry in ((FIXTURES / "calls.cu", "recursion"), (common, "common")):
        cubin = Cubin.read(from_cuda(path, entry, "sm_90", None, (), "cubin").code)
        (tmp_path / "calls.cubin").write_bytes(cubin.data)
        code, out, err = run("sass", "check", str(tmp_path / "calls.cubin"))
        assert (code, err) == (0, "") and " 0 hazards in" in out
        programs += [Program.of(cubin, name) for name in cubin.kernels]
        names |= {(word.name, word.opcode) for one in programs for word in one.words if word.name == "CALL"}
    assert names == {("CALL", 0x343), ("CALL", 0x344), ("CALL", 0x944)}
    for one in programs:  # what lies behind a pointer is checked as well: padding alone is not reached
        unreached = {one.words[place].name for start, block in one.blocks.items() if start not in states(one)
                     for place in block}
        assert unreached <= {"BRA", "NOP"}
    assert missed(programs, 100, seed=3) == []
