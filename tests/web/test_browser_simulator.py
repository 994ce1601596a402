"""The simulator in a browser: counts as natively, refusals with their line, an end to what has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.generate.explorer import setups
from peakgemm.runtime.compile import compile_source
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.front.arguments import argument

FIXTURES = Path(__file__).parents[1] / "support" / "fixtures"
ENDLESS = 'extern "C" __global__ void spin(int* p) { while (atomicAdd(p, 0) == 0) { } }'
ENDED = "/Done|Refused|failed|Stopped/.test(document.getElementById('said').textContent)"


def ptx(source: str, entry: str) -> str:
    return compile_source(source, entry, "sm_90", kind="ptx").text


def simulate(page: Any) -> str:
    page.click("button[type=submit]")
    page.wait_for_function(ENDED, timeout=90_000)
    return str(page.inner_text("#said"))


def paste(page: Any, text: str, grid: str, block: str, args: list[str]) -> None:
    page.select_option("#pick", "")
    for name, value in (("ptx", text), ("grid", grid), ("block", block), ("args", "\n".join(args))):
        page.fill(f"#{name}", value)


def counter(page: Any, name: str) -> int:
    return int(page.text_content(f"[data-counter={name}]").replace(",", ""))


def test_counts_are_those_of_the_simulator_outside(open_page, served) -> None:
    known = {one["name"]: one for one in setups()}
    page = open_page(f"{served}/simulate.html")
    for name, wavefronts in (("03", 418_176), ("04", 25_344), ("13", None), ("17", None)):
        page.select_option("#pick", name)
        assert "Done" in simulate(page)
        setup = known[name]
        args = [argument(word, number) for number, word in enumerate(setup["args"])]
        report = run(setup["ptx"], grid=int(setup["grid"]), block=int(setup["block"]), args=args,
                     shared_bytes=setup["shared"])
        for what in ("shared_wavefronts", "shared_wavefronts_ideal", "global_sectors", "global_requests", "barriers",
                     "warp_instructions"):
            assert counter(page, what) == report.counters[what]
        if wavefronts is not None:
            assert counter(page, "shared_wavefronts") == wavefronts
        if name == "03":
            drawn = page.locator(".access[data-space=shared]")
            assert (drawn.get_attribute("data-count"), drawn.get_attribute("data-ideal")) == ("32", "1")
            assert "33 words in place of 32" in drawn.inner_text()
        if name == "04":
            assert page.get_attribute("[data-costly]", "data-costly") == "0"


def test_a_transpose_of_others_shows_its_conflicts(open_page, served) -> None:
    page = open_page(f"{served}/simulate.html")
    text = ptx((FIXTURES / "transpose_naive_tile.cu").read_text(), "flip")
    paste(page, text, "2x2", "32x32", ["f32:64x64", "f32:64x64:arange", "64", "64"])
    assert "Done" in simulate(page)
    drawn = page.locator(".access[data-space=shared]")
    assert (drawn.get_attribute("data-count"), drawn.get_attribute("data-ideal")) == ("32", "1")
    said = drawn.inner_text()
    assert "Lanes 0 to 31 meet in bank 0: 32 different words, 32 words apart" in said
    assert "1 word of padding in each row (33 words in place of 32) would end it" in said
    assert counter(page, "shared_wavefronts") == 128 * 32 + 128
    assert page.locator(".fault").count() == 0
    begin = page.get_attribute(".kernel", "data-step")
    page.locator("h2").click()
    page.keyboard.press("ArrowRight")
    assert page.get_attribute(".kernel", "data-step") != begin


def test_an_exercise_is_checked_against_its_rung(open_page, served) -> None:
    page = open_page(f"{served}/simulate.html")
    page.select_option("#pick", "exercise_04")
    source = page.input_value("#source")
    assert "Change where the elements lie" in page.inner_text("form") and "// Exercise 04." in source
    for text, missed in ((source, ["shared wavefronts"]), (source.replace("Bs[BN][BK]", "Bs[BN][BK + 1]"), [])):
        page.fill("#ptx", ptx(text, "exercise_04"))
        assert "Done" in simulate(page)
        findings = page.locator("#findings li").all_inner_texts()
        assert len(findings) == 4
        assert [one.split(" ", 1)[1].split(":")[0] for one in findings if one.startswith("missed")] == missed
    page.fill("#args", page.input_value("#args").replace("nan", "zeros"))  # another launch: nothing to check
    assert "Done" in simulate(page)
    assert page.locator("#findings li").count() == 0
    page.select_option("#pick", "03")
    assert not page.locator("#source").is_visible()


def test_ptx_that_is_refused_is_pointed_at(open_page, served) -> None:
    page = open_page(f"{served}/simulate.html")
    lines = ptx(ENDLESS, "spin").splitlines()
    number = next(place for place, one in enumerate(lines) if "atom" in one)
    wrong = "tex.1d.v4.f32.f32 {%r1, %r1, %r1, %r1}, [nothing, {%r1}];"
    paste(page, "\n".join([*lines[:number], wrong, *lines[number:]]), "1", "32", ["s32:1"])
    assert "Refused" in simulate(page)
    assert f"{number + 1}: {wrong}" in page.inner_text(".fault")
    chosen = page.evaluate("(() => { const t = document.getElementById('ptx'); "
                           "return t.value.slice(t.selectionStart, t.selectionEnd) })()")
    assert chosen == wrong
    paste(page, "int main() {}", "1", "32", [])
    assert "Refused" in simulate(page)
    assert "no PTX" in page.inner_text(".fault")


def test_a_kernel_without_end_is_stopped(open_page, served) -> None:
    page = open_page(f"{served}/simulate.html")
    paste(page, ptx(ENDLESS, "spin"), "1", "32", ["s32:1"])
    page.fill("#steps", "20000")
    assert "Done" in simulate(page)
    assert "max_steps = 20000" in page.locator(".fault").first.inner_text()
    page.fill("#steps", "20000000")
    page.fill("#seconds", "2")
    assert "Done" in simulate(page)
    assert "max_seconds = 2" in page.locator(".fault").first.inner_text()
    page.fill("#seconds", "300")
    page.click("button[type=submit]")
    page.wait_for_timeout(1500)
    page.get_by_role("button", name="Stop").click()
    assert page.inner_text("#said") == "Stopped by you."
    page.select_option("#pick", "transpose")
    page.fill("#seconds", "30")
    assert "Done" in simulate(page)  # in a new worker
    assert counter(page, "shared_wavefronts") == 4_224


@pytest.mark.parametrize(("wide", "scheme"), [(1400, "light"), (1400, "dark"), (390, "light")])
def test_the_page_is_accessible_and_narrow(open_page, served, axe, wide: int, scheme: str) -> None:
    page = open_page(f"{served}/simulate.html", wide=wide, scheme=scheme)
    assert "Done" in simulate(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= wide
    assert axe(page) == []
