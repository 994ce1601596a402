"""The explorer in a browser: opened from disk it steps, compares, remembers its place, shows the simulator's counts."""

from __future__ import annotations

from typing import Any

import pytest

from peakgemm.kernels.registry import rung
from peakgemm.tools.explore.kernels import operands, problem_for
from peakgemm.tools.simulator import run_rung


@pytest.fixture(scope="session")
def counted() -> dict[str, dict[str, int]]:
    """The simulator's counters of rungs 03 and 04, from runs that nobody watched."""
    found = {}
    for number in (3, 4):
        a, b, c = operands(problem_for(rung(number), "sm_90"))
        found[f"{number:02}"] = run_rung(number, a, b, c).counters
    return found


def step(page: Any, kernel: str = "03") -> int:
    return int(page.get_attribute(f".kernel[data-kernel='{kernel}']", "data-step"))


def test_a_rung_is_stepped_by_keys_and_buttons(open_page, site) -> None:
    page = open_page((site / "index.html").as_uri() + "#k=03")
    begin = step(page)
    page.keyboard.press("ArrowRight")
    assert step(page) == begin + 1
    page.keyboard.press("ArrowLeft")
    assert step(page) == begin
    page.click("button[aria-label^='Step forward']")
    assert step(page) == begin + 1
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator(".access").count() >= 1
    after = step(page)
    assert after > begin + 1
    page.keyboard.press("Shift+ArrowLeft")
    assert step(page) < after
    page.keyboard.press("ArrowDown")
    assert "l=1" in page.url
    page.locator("select >> nth=2").select_option("31")  # the warp
    assert "w=31" in page.url
    page.locator("input[type=range]").fill("0")
    assert step(page) == 0
    page.keyboard.press("ArrowLeft")  # in the slider the keys are the slider's
    assert step(page) == 0


def test_conflicts_of_rung_03_are_gone_in_rung_04(open_page, site, counted) -> None:
    page = open_page((site / "index.html").as_uri() + "#k=03&k2=04")
    for kernel in ("03", "04"):
        for name in ("shared_wavefronts", "shared_loads", "global_sectors"):
            shown = page.locator(f"[data-counter={name}][data-of='{kernel}']")  # the one table, folded
            assert int(shown.text_content().replace(",", "")) == counted[kernel][name]
    assert counted["03"]["shared_wavefronts"] == 418_176
    assert counted["04"]["shared_wavefronts"] == counted["04"]["shared_wavefronts_ideal"] == 25_344
    three = page.locator(".kernel[data-kernel='03']")
    drawn = three.locator(".access[data-space=shared]")
    assert (drawn.get_attribute("data-count"), drawn.get_attribute("data-ideal")) == ("32", "1")
    assert "32 wavefronts, 1 at best" in drawn.inner_text()
    assert drawn.locator("svg .cell").count() == drawn.locator("svg .row").count() == 32
    assert drawn.locator("svg .cell.again").count() == 31
    assert "1 word of padding in each row (33 words in place of 32) would end it" in drawn.inner_text()
    assert page.locator("[data-of='04'] [data-costly]").get_attribute("data-costly") == "0"


def test_two_kernels_step_together_or_alone(open_page, site) -> None:
    page = open_page((site / "index.html").as_uri() + "#k=03")
    page.locator("select >> nth=1").select_option("04")
    assert page.locator(".kernel").count() == 2
    begin = step(page, "03"), step(page, "04")
    page.keyboard.press("ArrowRight")
    assert (step(page, "03"), step(page, "04")) == (begin[0] + 1, begin[1] + 1)
    page.get_by_label("step both").uncheck()
    page.locator(".kernel[data-kernel='04'] h2").click()
    page.keyboard.press("ArrowRight")
    assert (step(page, "03"), step(page, "04")) == (begin[0] + 1, begin[1] + 2)
    page.locator("select >> nth=1").select_option("")
    assert page.locator(".kernel").count() == 1


def test_the_other_kernel_follows_to_the_same_access(open_page, site) -> None:
    page = open_page((site / "index.html").as_uri())  # of two kernels: both
    instructions = page.locator(".status strong")
    for button in ("Step forward", "Next access (", "Next access (", "Access before", "Next access that costs"):
        both = [text.split()[0] for text in instructions.all_inner_texts()]
        assert both[0] == both[1]
        page.locator(f"[data-kernel='03'] button[aria-label^='{button}']").click()
    for number, chosen in enumerate(("31", "5")):
        page.locator("[data-kernel='04'] select").nth(number).select_option(chosen)
    assert "w=31&l=5" in page.url and "w2=31&l2=5" in page.url
    page.locator("[data-of='04'] .timeline .hit").first.click()
    assert step(page, "03") == step(page, "04") > 100  # padding changes no instruction


COUNTERPARTS = """async ([first, second]) => {
  const { Warp } = await import("explorer/model.js");
  const warp = (kinds) => new Warp({ kinds, code: kinds.map((_, kind) => ({ kind })), accesses: {}, writes: {},
    tracks: [{ warps: [0], steps: [[0, kinds.length]], jumps: [] }] }, 0);
  const [one, other] = [first, second].map((kinds) => warp(kinds.split(" ")));
  return first.split(" ").map((_, step) => one.counterpart(step, other));
}"""


@pytest.mark.parametrize(("first", "second", "steps"), [
    ("other copy other other stage compute", "other other copy stage other compute", [0, 2, 2, 2, 3, 4]),
    ("copy stage copy stage", "copy other copy copy stage", [0, 4, 2, 4]),  # the second copy; of stages the last
    ("other other other copy", "other barrier", [0, 0, 0, -1]),
])
def test_steps_belong_together_by_their_accesses(open_page, site, first: str, second: str, steps: list[int]) -> None:
    assert open_page((site / "index.html").as_uri()).evaluate(COUNTERPARTS, [first, second]) == steps


def test_two_texts_become_one(open_page, site) -> None:
    script = """async (texts) => (await import("explorer/code.js")).merged(...texts.map((text) => [...text]))"""
    found = open_page((site / "index.html").as_uri()).evaluate(script, ["abcd", "axcde"])
    assert found == [[0, 0], [1, -1], [-1, 1], [2, 2], [3, 3], [-1, 4]]


def test_two_pictures_stand_above_one_source(open_page, site) -> None:
    """A picture shows all banks without scrolling; what it is about stands once, what is counted is folded."""
    page = open_page((site / "index.html").as_uri() + "#k=03&k2=04", wide=1440)
    first, second = (page.locator(".access .drawing").nth(number) for number in (0, 1))
    for drawn in (first, second):
        assert drawn.evaluate("one => one.scrollWidth <= one.clientWidth")
        assert drawn.locator(".head:text-is('31')").is_visible()
    assert first.bounding_box()["y"] == second.bounding_box()["y"] < 400
    source = page.get_by_role("group", name="Source")
    assert source.count() == 1
    assert source.bounding_box()["y"] > first.bounding_box()["y"]
    assert source.locator(".on").count() == 1  # a line of both
    assert source.locator(".here").all_inner_texts() == ["  30 ", "  28 "]
    changed = source.locator(".only").all_inner_texts()
    assert any("- " in line for line in changed) and any("+ " in line for line in changed)
    assert not page.locator(".counters").is_visible()
    page.get_by_text("Counters of the whole run").click()
    assert page.locator(".counters").is_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    assert first.evaluate("one => one.scrollWidth <= one.clientWidth")
    upper, lower = first.bounding_box(), second.bounding_box()
    assert upper["y"] + upper["height"] < lower["y"] < source.bounding_box()["y"]


def test_a_step_moves_neither_the_focus_nor_what_is_open(open_page, site) -> None:
    page = open_page((site / "index.html").as_uri() + "#k=03")
    drawn = page.get_by_role("group", name="Timeline, drawn")
    drawn.focus()
    page.get_by_text("All kept registers").evaluate("one => one.click()")
    page.locator(".explain summary").evaluate("one => one.click()")
    page.keyboard.press("Shift+ArrowRight")
    assert drawn.evaluate("one => one === document.activeElement")
    assert page.locator(".registers details").get_attribute("open") == ""
    assert page.locator(".explain").get_attribute("open") is None


@pytest.mark.parametrize("fragment", ["#k=03&i=78.1&w=31&l=7", "#k=04&i=60.0&w=1&l=0&k2=03&i2=59.2&w2=0&l2=31"])
def test_a_fragment_opens_its_view_again(open_page, site, fragment: str) -> None:
    address = (site / "index.html").as_uri()
    page = open_page(address + fragment)
    assert page.url == address + fragment
    status = page.locator(".status").all_inner_texts()
    page.keyboard.press("ArrowRight")
    moved = page.url
    assert moved != address + fragment
    again = open_page(moved)
    assert again.locator(".status").all_inner_texts() == page.locator(".status").all_inner_texts() != status
    page.evaluate(f"location.hash = '{fragment}'")
    page.wait_for_function(f"location.hash === '{fragment}'")
    assert page.locator(".status").all_inner_texts() == status


def test_source_ptx_and_sass_are_linked(open_page, site) -> None:
    page = open_page((site / "index.html").as_uri() + "#k=03")
    panes = page.locator(".pane")
    assert panes.count() == 3
    fma = page.locator("[data-instruction]", has_text="fma.rn.f32").first
    fma.click()
    for place in range(3):
        marked = panes.nth(place).locator(".on")
        assert marked.count() >= 1
        assert marked.first.is_visible()
    assert "FFMA" in panes.nth(2).locator(".on").first.inner_text()
    assert panes.nth(2).locator(".reads").first.inner_text()
    assert page.locator(".registers td button").count() >= 2  # each operand's writer
    page.locator(".registers td button").first.click()
    assert "fma" not in page.locator(".status strong").inner_text()


def test_the_timeline_moves_to_where_it_is_clicked(open_page, site) -> None:
    page = open_page((site / "index.html").as_uri() + "#k=03")
    whole = page.locator(".timeline .hit").first
    whole.click(position={"x": whole.bounding_box()["width"] * 0.9, "y": 5})
    assert step(page) > 300
    kinds = page.locator(".timeline .tick").evaluate_all("all => [...new Set(all.map(one => one.classList[1]))]")
    assert {"copy", "stage", "load", "compute", "barrier"} <= set(kinds)


def test_all_that_takes_the_focus_shows_it_and_has_a_name(open_page, site) -> None:
    page = open_page((site / "index.html").as_uri() + "#k=03&k2=04")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    names = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        assert focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
        names.append(focused.evaluate("one => one.ariaLabel ?? one.labels?.[0]?.textContent ?? one.textContent"))
    assert all(name.strip() for name in names)
    assert names.count("Step") == 2 and sum(name.startswith("Source") for name in names) == 1
    assert names.index("Counters") < names.index("Timeline, drawn")


@pytest.mark.parametrize(("scheme", "wide"), [("light", 1400), ("dark", 1400), ("light", 390)])
@pytest.mark.parametrize("fragment", ["#k=03", "#k=03&k2=04"])
def test_axe_finds_no_serious_fault(open_page, site, axe, scheme: str, wide: int, fragment: str) -> None:
    page = open_page((site / "index.html").as_uri() + fragment, wide=wide, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= wide
    assert axe(page) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
