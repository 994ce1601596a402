"""Profiles: the numbers of the cost models as data, which GPU gets which, and what a bad file says."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.problem import Problem
from peakgemm.runtime import device
from peakgemm.runtime.device import Gpu
from peakgemm.selection import tuned
from peakgemm.selection.choose import choose
from peakgemm.selection.machine import GENERIC, kept_path, machine, machine_with, profile_of, shipped
from peakgemm.selection.profile_file import parse, read, to_json
from peakgemm.tools.tune import store

H100 = "NVIDIA H100 80GB HBM3"
OWN = replace(shipped(), name="mine")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test's own; what was remembered of another is forgotten."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path))
    tuned.forget()
    yield tmp_path
    monkeypatch.undo()
    tuned.forget()


def test_the_shipped_profile_is_small_and_says_where_it_comes_from() -> None:
    profile = shipped()
    assert profile.name == "generic" and profile.source and profile.command and profile.date
    sections = [section for section in to_json(profile).values() if isinstance(section, dict)]
    assert sum(isinstance(value, float) for section in sections for value in section.values()) <= 60
    assert json.loads(GENERIC.read_text()) == to_json(profile)
    assert (parse(to_json(profile)).tiled, parse(to_json(profile)).emulated) == (profile.tiled, profile.emulated)


def test_which_gpu_gets_which(kept: Path) -> None:
    assert {profile_of(arch, name).name for arch in ("sm_80", "sm_90") for name in (H100, "")} == {"generic"}
    assert store.save_profile(H100, OWN) == kept_path(H100) and kept_path(H100).is_file()
    assert [profile_of("sm_90", name).name for name in (H100, "NVIDIA H200", "")] == ["mine", "generic", "generic"]
    assert profile_of("sm_80", H100).name == "generic", "of another architecture"
    assert profile_of("sm_90", H100, own=False).name == "generic"


def test_a_choice_follows_the_profile_that_is_kept(kept: Path) -> None:
    problem = Problem.contiguous(1000, 1000, 1000)
    before = choose(problem, "sm_90", 132, H100)
    assert "by the numbers of the profile 'generic'" in before.reason
    assert choose(problem, "sm_90", 132, H100, "emulated").kernel.folder == "emulated"
    slow = {f"ffma_{before.config.tm}x{before.config.tn}_factor": 99.0}
    store.save_profile(H100, replace(OWN, tiled=replace(OWN.tiled, **slow),
                                     emulated=replace(OWN.emulated, worth_share=None)))
    after = choose(problem, "sm_90", 132, H100)
    assert after.config.tile != before.config.tile and "'mine'" in after.reason
    ieee = choose(problem, "sm_90", 132, H100, "emulated")
    assert ieee.kernel.folder == "ffma" and "not measured to win on sm_90 by the profile 'mine'" in ieee.reason
    assert choose(problem, "sm_90", 132).config == before.config, "another GPU's stays"


def test_tensor_cores_where_a_profile_was_measured(kept: Path) -> None:
    problem, name = Problem.contiguous(2048, 2048, 2048), "NVIDIA A100-SXM4-80GB"
    assert choose(problem, "sm_80", 108, name, "emulated").kernel.folder == "ffma"
    store.save_profile(name, replace(OWN, architecture="sm_80"))
    assert choose(problem, "sm_80", 108, name, "emulated").kernel.family.name == "mma"
    assert choose(replace(problem, k=32), "sm_80", 108, name, "emulated").kernel.folder == "ffma"


def test_numbers_are_in_units_of_what_the_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Gpu(0, "A GPU", "sm_89", 60, 2000, 500.0, 30 << 20, "13.0")
    monkeypatch.setattr(device, "count", lambda: 1)
    monkeypatch.setattr(device, "find", lambda index: here)
    own = machine_with(shipped(), "sm_89", 60, "A GPU")
    assert (own.mhz, own.bandwidth, own.l2_bytes, own.sms) == (2000, 500e3, 30 << 20, 60)
    reference = machine_with(shipped(), "sm_89", 60, "Another")
    assert (reference.mhz, reference.l2_bytes) == (2520, 72 << 20)


@pytest.mark.parametrize(("change", "says"), [
    ({"schema": 1}, r"schema = 1: this version reads profiles of schema 2; make it anew with: python -m lab.choice"),
    ({"tiled": None}, "tiled = None must be an object"),
    ({"surplus": 1}, "unknown field surplus = 1; valid ones: name, architecture"),
    ({"architecture": 90}, "architecture = 90 must be a str"),
    ({"residuals": []}, r"residuals = \[\] must be a dict"),
    ({"tiled.start_us": "2"}, "tiled.start_us = '2' must be a number from 0 to 1000"),
    ({"tiled.start_us": None}, "tiled.start_us = None must be a number"),
    ({"tiled.start_us": True}, "tiled.start_us = True must be a number"),
    ({"tiled.start_us": float("nan")}, "tiled.start_us = nan must be a number"),
    ({"tiled.start_us": -0.1}, "tiled.start_us = -0.1 must be a number from 0 to 1000"),
    ({"tiled.bandwidth_share": 3}, "tiled.bandwidth_share = 3 must be a number from 0 to 2"),
    ({"tiled.ffma_9x9_factor": 1}, "unknown field tiled.ffma_9x9_factor = 1"),
    ({"emulated": {"worth_share": None}}, "emulated.start_us is missing"),
])
def test_a_bad_file_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    found = to_json(shipped())
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
        with pytest.raises(InvalidValue, match=r"holds no profile .*; make it anew with: python -m lab.choice fit"):
            read(tmp_path / name)
    with pytest.raises(InvalidValue, match="schema = None"):
        parse([])


def test_a_damaged_profile_of_the_user_is_said_and_ignored(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    store.save_profile(H100, OWN)
    kept_path(H100).write_text('{"schema": 2}')
    tuned.forget()
    with caplog.at_level(logging.WARNING, "peakgemm"):
        assert machine("sm_90", 132, H100).profile.name == "generic"
    assert "a profile is ignored: " in caplog.text and "name is missing; make it anew" in caplog.text
