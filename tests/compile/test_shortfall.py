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
LARGE = Problem.contiguous(8192, 8192, 8192)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing remembered of another compilation, before and behind a test."""
    monkeypatch.setattr(shortfall, "_known", {})
    choose.cache_clear()
    yield
    choose.cache_clear()


def forget(monkeypatch):
    """What another process knows: what lies in the cache on disk."""
    monkeypatch.setattr(shortfall, "_known", {})
    choose.cache_clear()


@pytest.mark.parametrize(("number", "arch"), [(3, "sm_80"), (7, "sm_80"), (7, "sm_90"), (7, "sm_120"), (14, "sm_90")])
def test_figures_are_those_of_the_listing(number, arch):
    made = build(rung(number), rung(number).config_for(arch), arch)
    loop, listed = read(made.code, made.entry), static_facts(made.code, arch)
    assert (loop.instructions, loop.ffmas, loop.local) == (listed["loop_instructions"], listed["loop_ffma"], 0)
    assert loop.cycles_per_ffma == pytest.approx(listed["bank_cycles_per_ffma"], abs=2e-3)
    assert read(made.code, "another") is read(b"no cubin", "x") is None


def test_a_compilation_that_spills_is_not_chosen(monkeypatch, cold, caplog):
    choice = choose(LARGE, *H100)
    recipe = choice.kernel.recipe(choice.config, LARGE, "sm_90")
    sound, real = recipe.make("cubin"), nvrtc.build
    assert choice.kernel is WIDE and sound.spill_bytes == sound.loop["local"] == 0
    assert shortfall.reason(choice.config, sound.loop) == ""

    def few_registers(text, name, flags, instance):
        return real(text, name, [re.sub(r"(REGISTERS)=\d+", r"\1=160", flag) for flag in flags], instance)

    monkeypatch.setattr(nvrtc, "build", few_registers)
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(cold / "other"))
    monkeypatch.setenv("PEAKGEMM_SHIPPED", "0")
    made = recipe.make("cubin")
    assert made.loop["local"] > 0 and shortfall.note(choice.kernel, choice.config, recipe, made)
    assert "is not run" in caplog.text
    choose.cache_clear()
    for instead in (choose(LARGE, *H100), forget(monkeypatch) or choose(LARGE, *H100)):
        assert instead.kernel is not WIDE
        assert "spilled registers" in instead.reason and "wide 192x256" in instead.reason


def test_a_call_binds_the_next_best(monkeypatch):
    """Also by one chain of FMAs, and where tensor cores were asked about; a choice that was measured stays."""
    gpu = SimpleNamespace(arch="sm_90", sm_count=132, name=H100[2])
    tuned = replace(choose(LARGE, *H100), source="tuned")

    def bind(kernel, config, problem, gpu):
        why = "registers are spilled" if kernel is WIDE else ""
        if why:
            shortfall._known[kernel.recipe(config, problem, gpu.arch)] = why
        return SimpleNamespace(kernel=kernel, config=config, shortfall=why)

    monkeypatch.setattr("peakgemm.kernels.bound.bind", bind)
    for precision in ("ieee", "reproducible"):
        forget(monkeypatch)
        assert launch.bound_for(LARGE, gpu, launch.choice_for(LARGE, gpu, precision)).kernel is not WIDE
    assert launch.bound_for(LARGE, gpu, tuned).kernel is WIDE


def test_all_short_takes_the_first(monkeypatch):
    monkeypatch.setattr(shortfall, "known", lambda *what: "always")
    assert choose(LARGE, *H100).kernel is WIDE
