"""Profiles: the numbers of the cost models as data, which GPU gets which, and what a bad file says."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import peakgemm
from peakgemm.errors import InvalidValue
from peakgemm.problem import Problem
from peakgemm.runtime import device
from peakgemm.runtime.device import Gpu
from peakgemm.selection import tuned
from peakgemm.selection.choose import choose
from peakgemm.selection.machine import kept_path, machine, machine_with, profile_of, shipped, shipped_heads
from peakgemm.selection.profile_file import dumps, parse, read, to_json
from peakgemm.tools.tune import store

PACKAGE = Path(peakgemm.__file__).parent
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own; what was remembered of another is forgotten."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path))
    tuned.forget()
    yield tmp_path
    monkeypatch.undo()
    tuned.forget()


@pytest.mark.parametrize("name", shipped_heads())
def test_a_shipped_profile_says_where_it_comes_from(name: str) -> None:
    profile = shipped(name)
    assert profile.name == name and profile.source and profile.command and profile.date
    assert parse(json.loads(dumps(to_json(profile)))).tiled == profile.tiled
    assert dumps(to_json(profile)) + "\n" == (PACKAGE / "selection" / "profiles" / f"{name}.json").read_text()
    if not profile.gpus:  # tensor cores for "emulated": by measurement alone; shares: of a device's own figures
        assert profile.emulated.worth_share is None and profile.device is None


def test_which_gpu_gets_which(kept: Path) -> None:
    assert [profile_of("sm_90", name).name for name in (H100, "NVIDIA H200", "", "NVIDIA H20")] == [
        "h100", "h100", "h100", "generic"]
    assert [profile_of("sm_80", name).name for name in ("", "NVIDIA A100-SXM4-80GB", H100)] == ["generic"] * 3
    own = replace(shipped("h100"), name="mine")
    assert store.save_profile(H100, own) == kept_path(H100) and kept_path(H100).is_file()
    assert [profile_of("sm_90", name).name for name in (H100, "NVIDIA H200", "")] == ["mine", "h100", "h100"]
    assert profile_of("sm_80", H100).name == "generic", "of another architecture"
    assert profile_of("sm_90", H100, own=False).name == "h100"
    with pytest.raises(InvalidValue, match="no profile 'h300' is shipped; there are: generic, h100"):
        shipped("h300")


def test_a_choice_follows_the_profile_that_is_kept(kept: Path) -> None:
    problem = Problem.contiguous(1000, 1000, 1000)
    before = choose(problem, "sm_90", 132, H100)
    assert "by the numbers of the profile 'h100'" in before.reason
    assert choose(problem, "sm_90", 132, H100, "emulated").kernel.folder == "emulated"
    h100 = shipped("h100")
    slow = tuple(replace(tile, share=0.01, words_share=0.01) if tile.config == before.config else tile
                 for tile in h100.tiles)
    emulated = replace(h100.emulated, worth_share=None)
    store.save_profile(H100, replace(h100, name="mine", tiles=slow, emulated=emulated))
    after = choose(problem, "sm_90", 132, H100)
    assert after.config != before.config and "'mine'" in after.reason
    ieee = choose(problem, "sm_90", 132, H100, "emulated")
    assert ieee.kernel.folder == "ffma" and "not measured to win on sm_90 by the profile 'mine'" in ieee.reason
    assert choose(problem, "sm_90", 132).config == before.config, "another GPU's stays"


def test_tensor_cores_where_a_profile_says_so(kept: Path) -> None:
    problem, name = Problem.contiguous(2048, 2048, 2048), "NVIDIA A100-SXM4-80GB"
    assert choose(problem, "sm_80", 108, name, "emulated").kernel.folder == "ffma"
    generic = shipped("generic")
    store.save_profile(name, replace(generic, name="a100", architecture="sm_80",
                                     emulated=replace(generic.emulated, worth_share=0.95, fp16x3_chunk_us=1.5)))
    assert choose(problem, "sm_80", 108, name, "emulated").kernel.family.name == "mma"
    assert choose(replace(problem, k=32), "sm_80", 108, name, "emulated").kernel.folder == "ffma"


def test_shares_are_of_what_the_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Gpu(0, "A GPU", "sm_89", 60, 2000, 500.0, 30 << 20, "13.0")
    monkeypatch.setattr(device, "count", lambda: 1)
    monkeypatch.setattr(device, "find", lambda index: here)
    generic = shipped("generic")
    found = machine_with(generic, "sm_89", 60, "A GPU")
    assert (found.mhz, found.bandwidth, found.l2_bytes, found.sms) == (2000, 500e3, 30 << 20, 60)
    reference = machine_with(generic, "sm_89", 60, "Another")
    assert (reference.mhz, reference.l2_bytes) == (2520, 72 << 20)
    assert machine_with(shipped("h100"), "sm_90", 132, "A GPU").mhz == 1980, "what it was fitted with"


@pytest.mark.parametrize(("change", "says"), [
    ({"schema": 2}, r"schema = 2: this version reads profiles of schema 1; make it anew with: python -m lab.profile"),
    ({"tiled": None}, "tiled = None must be an object"),
    ({"surplus": 1}, "unknown field surplus = 1; valid ones: name, gpus"),
    ({"gpus": "NVIDIA"}, "gpus = 'NVIDIA' must be a list"),
    ({"gpus": [1]}, r"gpus\[0\] = 1 must be a str"),
    ({"tiled.start_us": "2"}, "tiled.start_us = '2' must be a number from -1000 to 1000"),
    ({"tiled.start_us": True}, "tiled.start_us = True must be a number"),
    ({"tiled.start_us": float("nan")}, "tiled.start_us = nan must be a number"),
    ({"tiled.bandwidth_share": 3}, "tiled.bandwidth_share = 3 must be a number from 0.001 to 2"),
    ({"tiled.crowded_steps": 1.5}, "tiled.crowded_steps = 1.5 must be an integer"),
    ({"tiles": [{"kernel": "specialised"}]}, r"tiles\[0\].config is missing"),
    ({"tiles": [{"kernel": "none", "config": {"bm": 8, "bn": 8, "bk": 8, "tm": 1, "tn": 1}, "share": 1,
                 "words_share": 1}]}, r"tiles\[0\].config is no configuration \(unknown kernel 'none'; valid"),
    ({"tiles": [{"kernel": "wide", "config": {"bm": 0}, "share": 1, "words_share": 1}]},
     r"tiles\[0\].config is no configuration"),
    ({"tiles": [{"kernel": "wide", "config": 3, "share": 1, "words_share": 1}]},
     r"tiles\[0\].config is no configuration \('int' object is not a mapping\)"),
    ({"emulated.streamed": [{"columns": 64}]}, r"emulated.streamed\[0\].chunk_us is missing"),
])
def test_a_bad_file_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    found = to_json(shipped("h100"))
    for name, value in change.items():
        section, _, field = name.rpartition(".")
        (found[section] if section else found)[field] = value
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(found))
    with pytest.raises(InvalidValue, match=rf"profile\.json: {says}"):
        read(path)


def test_no_json(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text("{")
    for name in ("half.json", "none.json"):
        with pytest.raises(InvalidValue, match=r"holds no profile .*; make it anew with: python -m lab.profile"):
            read(tmp_path / name)
    with pytest.raises(InvalidValue, match="schema = None"):
        parse([])


def test_a_damaged_profile_of_the_user_is_said_and_ignored(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    store.save_profile(H100, replace(shipped("h100"), name="mine"))
    kept_path(H100).write_text('{"schema": 1}')
    tuned.forget()
    with caplog.at_level(logging.WARNING, "peakgemm"):
        assert machine("sm_90", 132, H100).profile.name == "h100"
    assert "a profile is ignored: " in caplog.text and "name is missing; make it anew" in caplog.text
