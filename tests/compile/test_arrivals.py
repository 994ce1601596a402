"""No kernel of the library says that a stage is free while a warp's loads of it are still under way.

The compiler keeps an arrival at an mbarrier behind the issue of the loads before it, not behind their coming. In most
kernels FFMAs have waited for the loads by then; which instruction does is ptxas's choice, so the code is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from commands import run  # noqa: F401
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.chain import configurations as chains
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.tile_model import may_hand_on, tilings
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.recipe import Recipe
from peakgemm.kernels.registry import rung
from peakgemm.kernels.schedule import handing_on
from peakgemm.problem import Config, Problem
from peakgemm.sass.arrivals import arrivals
from peakgemm.sass.elf import Cubin
from peakgemm.sass.program import Program
from peakgemm.selection.machine import machine
from sass_cases import every_recipe_of_the_library, of_fixture, of_rung
from seldom import exhaustive

GPU = machine("sm_90", 132)


def under_way(cubin: Cubin) -> list[int]:
    """Loads under way at each arrival of every kernel of a cubin."""
    return [len(arrival.loads) for name in cubin.kernels for arrival in arrivals(Program.of(cubin, name))]


def most(recipe: Recipe) -> int:
    return max(under_way(Cubin.read(recipe.make("cubin").code)))


def fragment(recipe: Recipe) -> int:
    """Loads of one k-step: of a kernel that reads ahead, those of the next stage, which may be under way."""
    return (recipe.macros["TM"] + 3) // 4 + recipe.macros["TN"] // 4


def chain_fragment(recipe: Recipe) -> int:
    """`fragment` of chain.cu, whose fragments are several k-steps."""
    m = recipe.macros
    steps = 8 if m["TM"] * m["TN"] <= 2 else 4
    along_k = not m["TRANS_A"] if m["SWAPPED"] else m["TRANS_B"]
    return steps // 4 * m["TM"] + (steps // 4 * m["TN"] if along_k else steps)


def problem(layout: str, m: int = 4096) -> Problem:
    ta, tb = (letter == "T" for letter in layout)
    return Problem(m, 4096, 4096, m if ta else 4096, 4096, 4096, trans_a=ta, trans_b=tb)


@pytest.mark.parametrize(("entry", "loads"), [("early", [1]), ("behind_a_branch", [1]), ("in_a_loop", [1]),
                                              ("late", [0]), ("known_by_a_later_one", [0])])
def test_loads_under_way_are_seen(entry: str, loads: list[int]) -> None:
    program = Program.of(of_fixture("arrivals", entry), entry)
    assert [len(arrival.loads) for arrival in arrivals(program)] == loads


def test_the_command_looks_where_it_is_asked_to(tmp_path: Path, run) -> None:  # noqa: F811
    file = tmp_path / "ring.cubin"
    file.write_bytes(of_fixture("arrivals", "early").data)
    code, out, _ = run("sass", "check", str(file))
    assert code == 0 and "0 hazards in" in out
    code, out, _ = run("sass", "check", str(file), "--arrivals", "--json")
    assert code == 1 and {(hazard["rule"], hazard["kernel"]) for hazard in json.loads(out)["hazards"]} == {
        ("arrival", kernel) for kernel in ("early", "behind_a_branch", "in_a_loop")}


@pytest.mark.parametrize("config", [WIDE.default, handing_on(WIDE.default),
                                    exhaustive(replace(WIDE.default, stages=4)),
                                    exhaustive(replace(WIDE.default, bm=128, tm=8))], ids=Config.label)
def test_wide_arrives_when_its_loads_have_come(config: Config) -> None:
    assert most(WIDE.recipe(config, problem("TN"), "sm_90")) == 0


def test_wide_would_not_by_itself() -> None:
    made = WIDE.recipe(WIDE.default, problem("TN"), "sm_90")
    early = made.text.replace(" + (read & w.repack.none))", ")")
    assert early != made.text and most(replace(made, text=early)) > 0


LARGE_TILES = [tiling for tiling in tilings(SPECIALISED, GPU)
               if tiling.slices == 1 or tiling.tm >= 8]


@pytest.mark.parametrize("tile", [LARGE_TILES[0], LARGE_TILES[-1], *map(exhaustive, LARGE_TILES[1:-1])],
                         ids=Config.label)
def test_specialised_has_its_next_stage_under_way_and_no_more(tile: Config) -> None:
    chained = [handing_on(replace(tile, chunked=False))] if may_hand_on(SPECIALISED, tile) else []
    for config in (tile, *chained):
        made = SPECIALISED.recipe(config, problem("NN"), "sm_90")
        assert most(made) <= fragment(made)
    rung_15 = rung(15).config_for("sm_90")
    assert max(under_way(of_rung(15))) <= rung_15.tm // 4 + rung_15.tn // 4


@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("rows", [1, 16, exhaustive(2), exhaustive(32)])
def test_chain_has_its_next_stage_under_way_and_no_more(rows: int, layout: str) -> None:
    narrow = problem(layout, m=rows)
    made = CHAIN.recipe(next(iter(chains(narrow, GPU))), narrow, "sm_90")
    assert most(made) <= chain_fragment(made)


# Of the schemes' kernels those are scales, in a ring of their own with a slot more than there are stages: a slot is
# filled anew when the next chunk has been given back (SLOTS in product.cu and streamed.cu). And in product.cu the
# guard's verdict, which a warp of the same block stores: its store queues behind the load.
ALLOWED: dict[str, Callable[[Recipe], int]] = {
    "specialised.cu": fragment, "wide.cu": lambda made: 0, "product.cu": lambda made: 2,
    "streamed.cu": lambda made: made.macros["BN"] // 8}


@pytest.mark.exhaustive
def test_every_kernel_of_the_library() -> None:
    seen = [(made, loads) for made, cubin in every_recipe_of_the_library() if (loads := under_way(cubin))]
    assert len(seen) > 300
    for made, loads in seen:
        assert max(loads) <= ALLOWED[made.file](made), (made.file, made.macros, loads)
