"""Cubins that a wheel brings: which they are, and what becomes of them where source or container is another."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from peakgemm.kernels import shipped
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.library import recipes
from peakgemm.kernels.recipe import Recipe
from peakgemm.runtime.nvrtc import nvrtc_version
from peakgemm.selection.choose import candidates, choose
from peakgemm.selection.machine import machine
from scale import SCALE

TEXT = f"// A kernel.\n{SCALE}"
MOST_KERNELS = 400  # compiled, that a profile can name
DAMAGE = {
    "emptied": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(b"{\n" + path.read_bytes()),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\n" + path.read_bytes()),
    "another JSON": lambda path: path.write_bytes(b"[1, 2]\n" + path.read_bytes()),
    "no table": lambda path: path.write_bytes(b'{"nvrtc": "13.0", "cubins": 3}\n' + path.read_bytes()),
    "another table": lambda path: path.write_bytes(json.dumps({"nvrtc": "13.0", "cubins": {
        scale(factor).name: [0, 1] for factor in (3, 4)}}).encode() + b"\n"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:path.read_bytes().index(b"\n") + 9]),
    "altered": lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"\nx", 1)),
}


def scale(factor: int, text: str = TEXT) -> Recipe:
    return Recipe(text, "scale", "sm_90", {"FACTOR": factor}, "scale.cu")


@pytest.fixture
def container(cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: SimpleNamespace) -> Path:
    """One of two kernels, where the package looks for it; compilations count from here, on a cold cache."""
    monkeypatch.delenv("PEAKGEMM_SHIPPED", raising=False)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "cubins")
    path = shipped.container("sm_90a")
    shipped.write(path, {made.name: made.make("cubin") for made in (scale(3), scale(4))}, nvrtc_version())
    shipped.index.cache_clear()
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path / "colder"))
    programs.count = 0
    return path


def test_a_shipped_kernel_is_not_compiled(container: Path, programs: SimpleNamespace,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    assert (container.name, list(container.parent.iterdir())) == ("sm_90.cubins", [container])
    assert (shipped.index(container).nvrtc, len(shipped.index(container).cubins)) == (nvrtc_version(), 2)
    found = [scale(factor).make("cubin") for factor in (3, 4)]
    assert programs.count == 0 and found[0].code != found[1].code
    monkeypatch.setenv("PEAKGEMM_SHIPPED", "0")
    shipped.index.cache_clear()
    assert [scale(factor).make("cubin") for factor in (3, 4)] == found
    assert programs.count == 2
    shipped.index.cache_clear()


@pytest.mark.parametrize("other", ["12.8", "12.9", "13.9", "14.0"])
def test_a_shipped_kernel_is_used_whatever_compiler_is_there(container: Path, programs: SimpleNamespace, other: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    made = {factor: shipped.find(scale(factor).name, "scale", "sm_90") for factor in (3, 4)}
    monkeypatch.setattr("peakgemm.runtime.nvrtc.nvrtc_version", lambda: other)
    monkeypatch.setattr("peakgemm.runtime.nvrtc.identity", lambda: f"NVRTC {other}")
    assert shipped.index(container).nvrtc != other
    for factor, cubin in made.items():
        assert cubin is not None and scale(factor).make("cubin") == cubin
    assert programs.count == 0


def test_what_is_not_shipped_is_compiled(container: Path, programs: SimpleNamespace) -> None:
    others = scale(5), replace(scale(3), arch="sm_80"), scale(3, TEXT.replace("FACTOR", "(FACTOR + 1)"))
    assert [made.make("cubin").entry for made in others] == ["scale"] * 3
    assert scale(3).make("ptx").kind == "ptx"
    assert programs.count == 4


def test_a_comment_may_change(container: Path, programs: SimpleNamespace) -> None:
    for text in (TEXT.replace("// A kernel.", "/* Another one. */  "), TEXT.replace("{", "{ /* opens */  ", 1)):
        assert text != TEXT and scale(3, text).make("cubin") == scale(3).make("cubin")
    assert programs.count == 0


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_container_is_no_error(container: Path, programs: SimpleNamespace, damage) -> None:
    whole = [scale(factor).make("cubin") for factor in (3, 4)]
    damage(container)
    shipped.index.cache_clear()
    assert [scale(factor).make("cubin") for factor in (3, 4)] == whole
    assert programs.count == 2


def test_a_clone_ships_nothing() -> None:
    assert shipped.index(shipped.FOLDER / "sm_75.cubins").cubins == {}


def test_the_wheel_brings_what_products_launch() -> None:
    """But for kernels of few rows or columns, and of small matrices: their sizes are compiled in."""
    cubins = importlib.import_module("lab.cubins")
    wanted = cubins.wanted()
    names = wanted.keys()
    # What "ieee" and "emulated" choose by the profile; other schemes run where they are named.
    assert sum(made.macros.get("SCHEME", 0) == SCHEMES["fp16x3"].code for made in wanted.values()) <= MOST_KERNELS
    for m, n, k in ((512, 512, 512), (1000, 1000, 200), (1023, 1023, 1023), (4096, 4096, 4096), (4095, 4095, 4095)):
        for problem in cubins.problems(m, n, k):
            choice = choose(problem, "sm_90", 132)
            found = recipes(choice.kernel, choice.config, problem, "sm_90", 132)
            assert choice.kernel in cubins.BY_SIZE or {made.name for made in found} <= names, (problem, choice)
            kernel, config, _ = candidates(problem, machine("sm_90", 132), SCHEMES["fp16x3"])[0]
            assert kernel.recipe(config, problem, "sm_90").name in names, (problem, config)
