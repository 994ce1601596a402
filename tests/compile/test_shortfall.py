"""What the compiler made of a main loop is read off its cubin, and a compilation that falls short is not chosen."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from peakgemm.calls import launch
from peakgemm.kernels import shortfall
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.registry import rung
from peakgemm.problem import Problem
from peakgemm.runtime import nvrtc
from peakgemm.sass.compiled_loop import read
from peakgemm.sass.facts import static_facts
from peakgemm.selection.choose import choose
from rung_code import build

H100 = ("sm_90", 132, "NVIDIA H100 80GB HBM3")
LARGE = Problem(8192, 8192, 8192, 8192, 8192, 8192)


@pytest.fixture
def spoilt(monkeypatch, tmp_path):
    """A compiler with fewer registers for threads that compute than they need, and nothing remembered of another."""
    real = nvrtc.build

    def capped(text, name, flags, instance):
        return real(text, name, [re.sub(r"(REGISTERS)=\d+", r"\1=160", flag) for flag in flags], instance)

    monkeypatch.setattr(nvrtc, "build", capped)
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PEAKGEMM_SHIPPED", "0")
    monkeypatch.setattr(shortfall, "_known", {})
    choose.cache_clear()
    yield
    choose.cache_clear()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("number", [3, 7, 12, 14])
def test_figures_are_those_of_the_listing(number, arch):
    made = build(rung(number), rung(number).config_for(arch), arch)
    found, listed = read(made.code, made.entry), static_facts(made.code, arch)
    assert found.instructions == listed["loop_instructions"] and found.ffmas == listed["loop_ffma"]
    assert found.cycles_per_ffma == pytest.approx(listed["bank_cycles_per_ffma"], abs=2e-3)


def test_a_cubin_without_a_loop_or_that_is_none_has_no_figures():
    assert read(b"no cubin", "x") is None
    made = build(rung(3), rung(3).config_for("sm_90"), "sm_90")
    assert read(made.code, "another") is None


def test_what_the_compiler_makes_is_sound():
    choice = choose(LARGE, *H100)
    made = choice.kernel.recipe(choice.config, LARGE, "sm_90").make("cubin")
    assert choice.kernel is WIDE and made.spill_bytes == 0 and made.loop["local"] == 0
    assert shortfall.reason(choice.config, made.loop) == ""


def test_a_spoilt_compilation_is_not_chosen(spoilt, caplog):
    choice = choose(LARGE, *H100)
    assert choice.kernel is WIDE
    recipe = choice.kernel.recipe(choice.config, LARGE, "sm_90")
    made = recipe.make("cubin")
    assert made.loop["local"] > 0
    assert shortfall.note(choice.kernel, choice.config, recipe, made)
    assert "is not run" in caplog.text
    choose.cache_clear()
    instead = choose(LARGE, *H100)
    assert instead.kernel is not WIDE and "spilled registers" in instead.reason and "wide 192x256" in instead.reason


def test_another_process_knows_from_the_cache(spoilt, monkeypatch):
    choice = choose(LARGE, *H100)
    choice.kernel.recipe(choice.config, LARGE, "sm_90").make("cubin")
    monkeypatch.setattr(shortfall, "_known", {})
    choose.cache_clear()
    assert choose(LARGE, *H100).kernel is not WIDE


def test_a_call_binds_the_next_best(monkeypatch):
    """Also by one chain of FMAs, and where tensor cores were asked about; a choice that was measured stays."""
    gpu = SimpleNamespace(arch="sm_90", sm_count=132, name=H100[2])
    bad = choose(LARGE, *H100)
    monkeypatch.setattr(shortfall, "_known", {})

    def bind(kernel, config, problem, gpu):
        why = "registers are spilled" if kernel is WIDE else ""
        if why:
            shortfall._known[kernel.recipe(config, problem, gpu.arch)] = why
        return SimpleNamespace(kernel=kernel, config=config, shortfall=why)

    monkeypatch.setattr("peakgemm.kernels.bound.bind", bind)
    for precision in ("ieee", "reproducible"):
        choose.cache_clear()
        shortfall._known.clear()
        assert launch.bound_for(LARGE, gpu, launch.choice_for(LARGE, gpu, precision)).kernel is not WIDE
    tuned = replace(bad, source="tuned")
    assert launch.bound_for(LARGE, gpu, tuned).kernel is WIDE
    choose.cache_clear()


def test_all_short_takes_the_first(monkeypatch):
    monkeypatch.setattr(shortfall, "known", lambda *what: "always")
    choose.cache_clear()
    assert choose(LARGE, *H100).kernel is WIDE
    choose.cache_clear()
