"""Cubins that a wheel brings: which they are, and what becomes of them where source or container is another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import cubins
from peakgemm.kernels import shipped
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.library import recipes
from peakgemm.kernels.recipe import Recipe
from peakgemm.runtime.nvrtc import nvrtc_version
from peakgemm.selection.choose import candidates, choose
from peakgemm.selection.machine import machine
from scale import SCALE

TEXT = f"// A kernel.\n{SCALE}"
MOST_KERNELS = 420  # compiled, that a profile can name
MOST_THIN = 40     # that multiply large matrices by few vectors


def scale(factor: int, text: str = TEXT) -> Recipe:
    return Recipe(text, "scale", "sm_90", {"FACTOR": factor}, "scale.cu")


def both() -> list:
    """The two kernels of the container, made."""
    shipped.index.cache_clear()
    return [scale(factor).make("cubin") for factor in (3, 4)]


@pytest.fixture
def container(cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: SimpleNamespace) -> Path:
    """One of two kernels, where the package looks for it; compilations count from here, on a cold cache."""
    monkeypatch.delenv("PEAKGEMM_SHIPPED", raising=False)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "cubins")
    path = shipped.container("sm_90a")
    cubins.write(path, {made.name: made.make("cubin") for made in (scale(3), scale(4))}, nvrtc_version())
    shipped.index.cache_clear()
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path / "colder"))
    programs.count = 0
    return path


@pytest.mark.parametrize("other", ["12.8", "13.9", "14.0"])
def test_a_shipped_kernel_is_not_compiled(container: Path, programs: SimpleNamespace, other: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever compiler there is, unless that is asked for."""
    assert len(shipped.index(container).cubins) == 2
    with monkeypatch.context() as patch:
        patch.setattr("peakgemm.runtime.nvrtc.nvrtc_version", lambda: other)
        patch.setattr("peakgemm.runtime.nvrtc.identity", lambda: f"NVRTC {other}")
        brought = both()
    assert programs.count == 0 and brought[0].code != brought[1].code
    monkeypatch.setenv("PEAKGEMM_SHIPPED", "0")
    assert (both(), programs.count) == (brought, 2)
    shipped.index.cache_clear()


def test_what_is_another_kernel_is_compiled(container: Path, programs: SimpleNamespace) -> None:
    for text in (TEXT.replace("// A kernel.", "/* Another one. */  "), TEXT.replace("{", "{ /* opens */  ", 1)):
        assert text != TEXT and scale(3, text).make("cubin") == scale(3).make("cubin")
    assert programs.count == 0
    others = scale(5), replace(scale(3), arch="sm_80"), scale(3, TEXT.replace("FACTOR", "(FACTOR + 1)"))
    assert [made.make("cubin").entry for made in others] == ["scale"] * 3
    assert scale(3).make("ptx").kind == "ptx"
    assert programs.count == 4


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: b"{\n" + data, lambda data: b"\xff\xfe\n" + data, lambda data: b"[1, 2]\n" + data,
    lambda data: b'{"nvrtc": "13.0", "cubins": 3}\n' + data,
    lambda data: json.dumps({"nvrtc": "13.0", "cubins": {scale(factor).name: [0, 1] for factor in (3, 4)}}).encode(),
    lambda data: data[:data.index(b"\n") + 9], lambda data: data.replace(b"\n", b"\nx", 1),
], ids=["emptied", "no JSON", "no text", "another JSON", "no table", "another table", "cut off", "altered"])
def test_a_damaged_container_is_no_error(container: Path, programs: SimpleNamespace, damage) -> None:
    whole = both()
    container.write_bytes(damage(container.read_bytes()))
    assert (both(), programs.count) == (whole, 2)


def test_the_wheel_brings_what_products_launch() -> None:
    """But for kernels of few rows or columns, and of small matrices: their sizes are compiled in."""
    wanted = cubins.wanted()
    # What "ieee" and "emulated" choose by the profile; other schemes run where they are named.
    named = [made for made in wanted.values() if made.macros.get("SCHEME", 0) == SCHEMES["fp16x3"].code]
    thin = [made for made in named if made.file.startswith("skinny")]
    assert len(named) - len(thin) <= MOST_KERNELS and len(thin) <= MOST_THIN
    for m, n, k in ((512, 512, 512), (1000, 1000, 200), (1023, 1023, 1023), (4096, 4096, 4096), (4095, 4095, 4095)):
        for problem in cubins.problems(m, n, k):
            choice = choose(problem, "sm_90", 132)
            made = recipes(choice.kernel, choice.config, problem, "sm_90", 132)
            assert choice.kernel in cubins.BY_SIZE or {each.name for each in made} <= wanted.keys(), (problem, choice)
            kernel, config, _ = candidates(problem, machine("sm_90", 132), SCHEMES["fp16x3"])[0]
            assert kernel.recipe(config, problem, "sm_90").name in wanted, (problem, config)
