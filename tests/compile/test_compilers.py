"""The oldest, the pinned and the newest NVRTC compile the fastest kernels well: lab/compilers.py. Needs the package
index, from which each release comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import compilers
from peakgemm.errors import MissingComponent
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.tile_model import tilings
from peakgemm.kernels.patched import REBUILT
from peakgemm.runtime.nvrtc import TESTED
from peakgemm.selection.machine import machine

CONSTRAINTS = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
PINNED = next(line.partition("==")[2] for line in CONSTRAINTS if line.startswith("nvidia-cuda-nvrtc=="))


def test_what_is_compiled_by_each_release() -> None:
    """Every family's kernels, and every tile that a square's choice may take."""
    assert PINNED in TESTED and sorted(TESTED, key=lambda release: [*map(int, release.split("."))]) == list(TESTED)
    names = [entry[:2] for entry in compilers.entries()]
    assert len(set(names)) == len(names)
    assert {family for family, _ in names} == {"specialised", "wide", "chain", "skinny", "small", "staged", "emulated",
                                               "ladder", "second kernel"}
    assert {tiling.label() for tiling in tilings(SPECIALISED, machine("sm_90", 132))} | {
        "16_sass_tuned", "17_tensor_cores"} <= {label for _, label in names}


def test_a_release_that_is_nowhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "FOLDERS", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(MissingComponent, match=r"NVRTC 13\.99\.1 cannot be fetched .*package index"):
        compilers.fetch("13.99.1")


@pytest.mark.exhaustive
@pytest.mark.parametrize("release", sorted({TESTED[0], PINNED, TESTED[-1]}))
def test_the_fastest_kernels_are_compiled_well(release: str) -> None:
    try:
        compilers.fetch(release)
    except MissingComponent as error:
        pytest.skip(str(error))
    made = compilers.by_release(release, ("wide", "specialised", "ladder"))
    own = {name: facts for name, facts in made.items() if not name.startswith("ladder")}
    assert len(own) > 20 and len(made) > len(own)
    assert {name: facts for name, facts in own.items() if facts["spill_bytes"] or facts["local"]} == {}
    assert {name: facts["shortfall"] for name, facts in made.items() if "shortfall" in facts} == {}
    assert made["ladder|16_sass_tuned"]["note"].startswith(REBUILT)
