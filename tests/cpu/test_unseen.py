"""tools/unseen.py: what is drawn, what a row and the summary say, and how a record is gone on with."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from math import log2, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_cli import ROOT, valid

from host_peer import GPU, HostPeer
from peakgemm import tuned
from peakgemm.bench.suites import cases
from peakgemm.errors import InvalidValue, LaunchFailed
from peakgemm.kernels.library import SPECIALISED
from peakgemm.select import choose
from peakgemm.tune.halving import Outcome
from peakgemm.tune.space import Candidate

OTHER = Candidate(SPECIALISED, replace(SPECIALISED.default, raster=3), 1.0)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The tool as a module; no entries of a user's."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path / "cache"))
    tuned.forget()
    spec = importlib.util.spec_from_file_location("unseen", ROOT / "tools" / "unseen.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    yield found
    tuned.forget()


@pytest.fixture
def run(tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """The command with searches that end as told: the shapes that were searched for."""
    peer = HostPeer()
    monkeypatch.setattr(tool.device, "require", lambda: GPU)
    monkeypatch.setattr(tool, "find_peer", lambda: peer)
    monkeypatch.setattr(tool, "Timer", lambda peer, seconds: SimpleNamespace(seconds=seconds))

    def run(*words: str, ratio: Callable[[int], float] = lambda i: 1.1, meanwhile: Any = lambda: None) -> list[str]:
        searched: list[str] = []
        byproblem = {case.problem()[0]: case.name for case in islice(tool.drawn(0), 40)}

        def search(problem: Any, gpu: Any, peer: Any, timer: Any, *, seconds: float, keep: int) -> Outcome:
            assert timer.seconds == seconds
            searched.append(byproblem[problem])
            meanwhile()
            return outcome(problem, ratio(len(searched) - 1), timed=keep)

        monkeypatch.setattr(tool.search, "search", search)
        monkeypatch.setattr(sys, "argv", ["tools/unseen.py", "--json", str(tmp_path / "unseen.json"), *words])
        tool.main()
        return searched

    return run


def outcome(problem: Any, ratio: float, replaced: bool = True, timed: int = 7, best: bool = True) -> Outcome:
    choice = choose(problem, GPU.arch, GPU.sm_count, GPU.name)
    default = Candidate(choice.kernel, choice.config, 1.0)
    winner, finalist = OTHER if replaced else default, OTHER if best else None
    return Outcome(winner, ratio, (ratio - 0.01, ratio + 0.02), finalist, replaced, timed, ["one: no registers left"])


def read(tmp_path: Path) -> dict[str, Any]:
    return valid(tmp_path / "unseen.json")


def test_the_same_seed_draws_the_same_shapes(tool: Any) -> None:
    names = [case.name for case in islice(tool.drawn(0), 40)]
    assert names == [case.name for case in islice(tool.drawn(0), 40)]
    # On every version of Python.
    assert names[:7] == ["3072x220x388", "104x512x372", "756x4608x2432", "1408x1140x30", "4736x256x64", "16x128x1034",
                         "3587x96x52:TT"]
    assert not set(names) & {case.name for case in islice(tool.drawn(1), 40)}


def test_what_is_drawn(tool: Any) -> None:
    found = list(islice(tool.drawn(3), 2000))
    assert len(set(found)) == len({case.name for case in found}) == 2000
    sizes = [size for case in found for size in (case.m, case.n, case.k)]
    assert 16 <= min(sizes) < 20 and 8000 < max(sizes) <= 8192
    assert max(prod((case.m, case.n, case.k)) for case in found) <= 2**36
    for low in range(4, 12):  # of each octave about as many; a limit on the product thins out the large ones
        share = sum(low <= log2(size) < low + 1 for size in sizes) / len(sizes)
        assert 0.08 < share < 0.16, low
    for multiple, least in ((4, 0.6), (32, 0.3), (128, 0.1)):
        share = sum(size % multiple == 0 for size in sizes) / len(sizes)
        assert least < share < 0.9
    assert 0.15 < sum(size % 4 > 0 for size in sizes) / len(sizes) < 0.4
    layouts = [case.layout for case in found]
    assert 0.7 < layouts.count("NN") / 2000 < 0.8 and min(map(layouts.count, ("NT", "TN", "TT"))) > 100
    assert all(case.batch == 1 for case in found)


def test_what_a_table_holds_is_left_out(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list(islice(tool.drawn(0), 20))
    assert tool.unseen(20, 0, GPU) == drawn
    held = {tuned.key(case.problem()[0]) for case in (drawn[0], drawn[7])}
    monkeypatch.setattr(tuned, "lookup", lambda problem, device: (
        ("specialised", OTHER.config, "table") if tuned.key(problem) in held and device == GPU.name else None))
    assert tool.unseen(18, 0, GPU) == [case for case in drawn if case not in (drawn[0], drawn[7])]


def test_the_committed_table_is_asked(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known, new = cases("100352x256x64:NT,130x4096x4096")
    monkeypatch.setattr(tool, "drawn", lambda seed: iter([known, new]))
    assert tool.unseen(2, 0, GPU) == [new]


@pytest.mark.parametrize(("ratio", "replaced", "best", "written"), [
    (1.2, True, True, 1.2),
    (1.005, False, True, 1.005),  # too little for the tuner: the choice is slower all the same
    (0.93, False, True, 1.0),     # nothing was faster
    (1.0, False, False, 1.0),     # nothing else ran
])
def test_a_row(tool: Any, ratio: float, replaced: bool, best: bool, written: float) -> None:
    (case,) = cases("3587x96x52:TT")
    row = tool.row_of(case, GPU, outcome(case.problem()[0], ratio, replaced, best=best))
    choice = choose(case.problem()[0], GPU.arch, GPU.sm_count, GPU.name)
    assert (row["name"], row["shape"], row["layout"], row["source"]) == (
        "3587x96x52:TT", [3587, 96, 52], "TT", "heuristic")
    own = {"kernel": choice.kernel.name, "config": choice.config.to_json()}
    assert {name: row[name] for name in own} == own
    fastest = row["fastest"]
    assert (fastest["ratio"], fastest["replaces"], fastest["timed"], len(fastest["refused"])) == (
        written, replaced, 7, 1)
    others = {"kernel": "specialised", "config": OTHER.config.to_json()}
    assert {name: fastest[name] for name in own} == (others if written > 1 else own)
    assert fastest["spread"][0] <= fastest["ratio"] <= fastest["spread"][1]


def test_the_summary(tool: Any) -> None:
    rows = [{"name": str(i), "fastest": {"ratio": ratio}} for i, ratio in enumerate(
        [1.0, 1.0, 1.01, 1.02, 1.03, 1.05, 1.051, 1.2, 1.1, 1.3, 1.06])]
    assert tool.summary(rows) == {"rows": 11, "median": 1.05, "p90": 1.2, "worst": 1.3, "worst_name": "9",
                                  "within_5_percent": pytest.approx(6 / 11)}
    assert tool.summary(rows[9:10])["p90"] == 1.3


def test_the_record(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searched = run("--count", "4", "--keep", "9", ratio=lambda i: 1 + i / 10)
    data = read(tmp_path)
    assert [row["name"] for row in data["rungs"]] == searched and len(searched) == 4
    assert data["unseen"] == {"seed": 0, "seconds": 0.5, "keep": 9, "rows": 4, "median": 1.15, "p90": 1.27,
                              "worst": 1.3, "worst_name": searched[3], "within_5_percent": 0.25}
    assert data["command"] == "python tools/unseen.py --json unseen.json --count 4 --keep 9"
    assert data["rungs"][0]["fastest"]["timed"] == 9
    assert data["environment"]["cublas"] == "13.1.0"
    assert "4 shapes, time of the choice over the fastest found: 1.150 in the median" in capsys.readouterr().out


def test_a_record_is_gone_on_with(run: Any, tmp_path: Path) -> None:
    first = run("--count", "3", ratio=lambda i: 1.5)
    assert run("--count", "3") == []
    more = run("--count", "5", ratio=lambda i: 1.2)
    rows = read(tmp_path)["rungs"]
    assert [row["name"] for row in rows] == first + more and len(more) == 2
    assert [row["fastest"]["ratio"] for row in rows] == [1.5] * 3 + [1.2] * 2
    assert run("--count", "2") == [] and len(read(tmp_path)["rungs"]) == 5  # nothing is thrown away


def test_a_choice_that_changed_is_measured_anew(run: Any, tmp_path: Path) -> None:
    names = run("--count", "3")
    data = read(tmp_path)
    data["rungs"][1]["config"]["raster"] = 77
    (tmp_path / "unseen.json").write_text(json.dumps(data))
    assert run("--count", "3", ratio=lambda i: 1.4) == [names[1]]
    assert {row["name"]: row["fastest"]["ratio"] for row in read(tmp_path)["rungs"]} == {
        names[0]: 1.1, names[1]: 1.4, names[2]: 1.1}


@pytest.mark.parametrize(("change", "match"), [
    (["--seed", "1"], "options .*'seed': 0.*'seed': 1"), (["--seconds", "0.7"], "options"),
    (["--keep", "3"], "options"), (None, "was made with device .*another GPU"),
])
def test_what_differs_is_not_mixed(run: Any, tmp_path: Path, change: list[str] | None, match: str) -> None:
    run("--count", "2")
    path = tmp_path / "unseen.json"
    if change is None:
        path.write_text(path.read_text().replace(GPU.name, "another GPU"))
    before = path.read_bytes()
    with pytest.raises(InvalidValue, match=f"{match}.*name another file"):
        run("--count", "2", *(change or []))
    assert path.read_bytes() == before


def test_the_record_is_written_after_every_shape(run: Any, tmp_path: Path) -> None:
    lengths: list[int] = []
    path = tmp_path / "unseen.json"
    run("--count", "3", meanwhile=lambda: lengths.append(len(read(tmp_path)["rungs"]) if path.exists() else 0))
    assert lengths == [0, 1, 2]


def test_the_time_is_kept(run: Any, tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(tool.time, "monotonic", lambda: clock.now)

    def pass_by() -> None:
        clock.now += 10

    assert len(run("--count", "8", "--seconds-in-all", "25", meanwhile=pass_by)) == 3
    assert "25 s are over: 5 of 8 shapes are left" in capsys.readouterr().out
    assert len(run("--count", "8", "--seconds-in-all", "1000", meanwhile=pass_by)) == 5
    assert len(read(tmp_path)["rungs"]) == 8


def test_a_shape_that_fails_is_left_for_another_time(run: Any, tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    def ratio(i: int) -> float:
        if i == 1:
            raise LaunchFailed("refused")
        return 1.1

    with pytest.raises(SystemExit, match="1 shape"):
        run("--count", "3", ratio=ratio)
    assert len(read(tmp_path)["rungs"]) == 2 and "LaunchFailed: refused" in capsys.readouterr().err
    assert len(run("--count", "3")) == 1 and len(read(tmp_path)["rungs"]) == 3
