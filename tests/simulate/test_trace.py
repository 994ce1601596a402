"""Traces of the explorer: they say what the run counted, and are as long as the limits allow."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from docs.generate import browser
from peakgemm.errors import InvalidValue
from peakgemm.kernels.registry import rung
from peakgemm.runtime.compile import compile_source
from peakgemm.tools.explore.kernels import Launch, operands, own_trace, problem_for, rung_trace
from peakgemm.tools.explore.page import page, write_pages
from peakgemm.tools.explore.recorder import Limits, Recorder
from peakgemm.tools.explore.trace import Named, trace
from peakgemm.tools.simulator import run_rung
from seldom import exhaustive
from simulator_cases import FIXTURES

NAMED = Named("x", "x", "", {}, {})
ENDLESS = 'extern "C" __global__ void spin(int* p) { while (atomicAdd(p, 0) == 0) { } }'


@cache
def traced(number: int) -> dict[str, Any]:
    return rung_trace(rung(number))


def ptx(source: str, entry: str) -> str:
    return compile_source(source, entry, "sm_90", kind="ptx").text


def steps(track: dict[str, Any]) -> list[int]:
    return [first + place for first, count in track["steps"] for place in range(count)]


@pytest.mark.parametrize("number", [3, 12, 13, exhaustive(5)])
def test_accesses_of_all_warps_add_up_to_the_counters(number: int) -> None:
    kernel = rung(number)
    config = kernel.config_for("sm_90")
    a, b, c = operands((config.bm, config.bn, config.bk * 2))
    warps = config.block_threads // 32
    recorder = Recorder(0, tuple(range(warps)), Limits(accesses=10**6))
    report = run_rung(kernel, a, b, c, observer=recorder)
    found = trace(recorder, report, NAMED, {})
    wavefronts, sectors = Counter[int](), Counter[int]()
    for warp, accesses in found["accesses"].items():
        track = next(one for one in found["tracks"] if int(warp) in one["warps"])
        index = steps(track)
        for step, shape, _, *source in accesses:
            drawn = found["shapes"][shape]
            if drawn["space"] == "shared":
                wavefronts[index[step]] += max(drawn["count"], *source, 0)
            else:
                sectors[index[step]] += drawn["count"]
    counted = {ins: code["n"] for ins, code in enumerate(found["code"]) if code}
    assert report.counters["shared_wavefronts"] > 0
    assert sum(wavefronts.values()) == report.counters["shared_wavefronts"]
    assert {ins: n[1] for ins, n in counted.items() if n[1]} == dict(wavefronts)
    assert {ins: n[3] for ins, n in counted.items() if n[3]} == dict(sectors)
    executed = Counter(ins for track in found["tracks"] for ins in steps(track) for _ in track["warps"])
    assert {ins: n[0] for ins, n in counted.items()} == dict(executed)


@pytest.mark.parametrize("number", [13, 15, exhaustive(3), exhaustive(17)])
def test_a_watched_run_computes_and_counts_the_same(number: int) -> None:
    kernel = rung(number)
    a, b, c = operands(problem_for(kernel, "sm_90"))
    alone = c.copy()
    report = run_rung(kernel, a, b, alone)
    assert report.clean
    watched = run_rung(kernel, a, b, c, observer=Recorder())
    assert watched.clean
    np.testing.assert_array_equal(c.view(np.uint32), alone.view(np.uint32))
    assert watched.counters == report.counters


def test_rung_04_ends_the_conflicts_of_rung_03() -> None:
    def worst(found: dict[str, Any]) -> int:
        return max(one["count"] for one in found["shapes"] if one["space"] == "shared")

    assert (worst(traced(3)), worst(traced(4))) == (32, 1)
    # 24,576 loads, half of them a column of B; as many stores of 32 wavefronts as of one.
    assert traced(3)["counters"]["shared_wavefronts"] == 418_176
    assert traced(4)["counters"]["shared_wavefronts"] == traced(4)["counters"]["shared_wavefronts_ideal"] == 25_344


def test_values_are_those_of_the_lanes() -> None:
    found = traced(3)
    track = next(one for one in found["tracks"] if 1 in one["warps"])
    index = steps(track)
    a, b, _ = operands(problem_for(rung(3), "sm_90"))
    loads = [(step, register, value) for step, register, value in found["writes"]["1"]
             if "ld.global" in found["code"][index[step]]["text"]]
    np.testing.assert_allclose(loads[0][2], a[1, :32], rtol=1e-5)  # warp 1 copies row 1 of A's tile, and of B's
    np.testing.assert_allclose(loads[1][2], b[1, :32], rtol=1e-5)
    lane = next(value for _, _, value in found["writes"]["0"] if isinstance(value, dict))
    assert lane["step"] >= 1


def test_roles_of_warps_have_tracks_of_their_own() -> None:
    tracks = traced(15)["tracks"]
    assert sorted(warp for one in tracks for warp in one["warps"]) == list(range(12))
    assert max(map(len, (one["warps"] for one in tracks))) >= 7  # the warps that compute march together
    assert len(tracks) >= 3
    for one in tracks:
        clocks = [clock for _, clock in one["jumps"]]
        assert clocks == sorted(clocks)
        assert one["end"] >= sum(count for _, count in one["steps"])


def test_copies_are_in_flight_until_they_are_waited_for() -> None:
    found = traced(13)
    index = steps(found["tracks"][0])
    copies = [one for one in found["tracks"][0]["flights"] if one[0] == "copy"]
    assert len(copies) == 5  # a group a stage of K: 80 of 16
    for _, first, last in copies:
        assert "cp.async" in found["code"][index[first]]["text"]
        assert "wait_group" in found["code"][index[last]]["text"]
    # The third stage is asked for before the first is multiplied, and waited for behind the second.
    assert all("compute" in {found["kinds"][found["code"][one]["kind"]] for one in index[first:last]}
               for _, first, last in copies[1:])


def test_barriers_hold_warps_until_the_last_one_comes() -> None:
    source = """extern "C" __global__ void late(float* p) {
      if (threadIdx.x >= 32) for (int i = 0; i < p[0]; ++i) p[threadIdx.x + 1] += i;
      __syncthreads();
      p[threadIdx.x + 1] += 1; }"""
    values = np.zeros(65, np.float32)
    values[0] = 50
    found = own_trace(Launch(ptx(source, "late"), [1], [64], [values]), "late", "late")
    early = next(one for one in found["tracks"] if 0 in one["warps"])
    late = next(one for one in found["tracks"] if 1 in one["warps"])
    assert len(early["jumps"]) == 1
    assert not late["jumps"]
    assert abs(early["end"] - late["end"]) <= 3


def test_limits_are_kept_and_said_for_any_block() -> None:
    recorder = Recorder(3, (0,), Limits(events=200, accesses=5, writes=7, fma_writes=3))
    a, b, c = operands((64, 64, 64))
    report = run_rung(3, a, b, c, observer=recorder)
    found = trace(recorder, report, NAMED, {})
    assert found["traced_block"] == [3, 0, 0] and len(recorder.events) == 200
    assert len(found["accesses"]["0"]) == 5
    assert len(found["writes"]["0"]) <= 8 * 7 + 3
    assert len(found["limits"]) == 4
    assert "5" in found["limits"][1]


def test_traces_are_json_of_bounded_size(tmp_path: Any) -> None:
    for number in (3, 17):
        found = traced(number)
        assert len(json.dumps(found, allow_nan=False)) < 1_500_000
        assert found["schema"] == 1
    text = page([traced(3), traced(4)])
    assert text.count("<script") == 3
    assert "http://" not in text.replace("http://www.w3.org", "")
    written = write_pages(tmp_path / "out", [traced(3)])
    assert written == tmp_path / "out" / "index.html"
    assert json.loads((tmp_path / "out" / "03.json").read_text())["name"] == "03"
    with pytest.raises(InvalidValue, match="cannot write"):
        write_pages(tmp_path / "out" / "03.json" / "page.html", [traced(3)])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["03.json", "index.html"]


def asked(**changes: Any) -> dict[str, Any]:
    text = (FIXTURES / "transpose_naive_tile.cu").read_text()
    request = {"ptx": ptx(text, "flip"), "grid": "2x2", "block": "32x32", "max_steps": 10**6, "max_seconds": 30,
               "args": ["f32:64x64", "f32:64x64:arange", "64", "64"]}
    return dict(json.loads(browser.answer(json.dumps({**request, **changes}))))


def test_a_transpose_of_others_is_explained() -> None:
    found = asked()["trace"]
    shape = max((one for one in found["shapes"] if one["space"] == "shared"), key=lambda one: one["count"])
    assert (shape["count"], shape["ideal"]) == (32, 1)
    assert "Lanes 0 to 31 meet in bank 0" in shape["text"]
    assert "33 words in place of 32" in shape["text"]
    assert found["counters"]["shared_wavefronts"] == 128 * 32 + 128
    assert {one["name"] for one in found["arrays"]} == {"param_0", "param_1"}


@pytest.mark.parametrize(("changes", "words"), [
    ({"ptx": "int main() {}"}, "no PTX"), ({"grid": "many"}, "grid 'many' is not X"),
    ({"args": ["f32:64x64"]}, "takes 4 arguments"), ({"args": ["f32:99999x99999"]}, "max_memory"),
    ({"block": "64x32"}, "2048 threads"),
])
def test_requests_that_are_refused(changes: dict[str, Any], words: str) -> None:
    found = asked(**changes)
    assert words in found["error"] and found["line"] is None


def test_ptx_that_is_refused_has_its_line() -> None:
    lines = ptx(ENDLESS, "spin").splitlines()
    number = next(place for place, one in enumerate(lines) if "atom" in one)
    wrong = "  tex.1d.v4.f32.f32 {%r1, %r1, %r1, %r1}, [nothing, {%r1}];"
    broken = "\n".join([*lines[:number], wrong, *lines[number:]])
    found = json.loads(browser.answer(json.dumps({"ptx": broken, "grid": "1", "block": "32", "args": ["s32:1"],
                                                  "max_steps": 1000, "max_seconds": 5})))
    assert "tex" in found["error"]
    assert found["line"] == number + 1


def test_a_kernel_without_end_is_stopped_and_shown() -> None:
    text = ptx(ENDLESS, "spin")
    found = json.loads(browser.answer(json.dumps({"ptx": text, "grid": "1", "block": "32", "args": ["s32:1"],
                                                  "max_steps": 3000, "max_seconds": 5})))["trace"]
    assert found["stopped"]
    assert found["faults"]
    assert found["tracks"][0]["steps"]


