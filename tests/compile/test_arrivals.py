"""No kernel of the library says that a stage is free while a warp's loads of it are still under way.

The compiler keeps an arrival at an mbarrier behind the issue of the loads before it, not behind their coming. In most
kernels FFMAs have waited for the loads by then; which instruction does is ptxas's choice, so the code is looked at.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
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
from peakgemm.sass.arrivals import Arrival, arrivals
from peakgemm.sass.elf import Cubin
from peakgemm.sass.program import Program
from peakgemm.selection.machine import machine
from sass_cases import every_recipe_of_the_library, of_fixture, of_rung

GPU = machine("sm_90", 132)


def fragment(macros: dict[str, int]) -> int:
    """Loads of one k-step: of a kernel that reads ahead, those of the next stage, which may be under way."""
    return (macros["TM"] + 3) // 4 + macros["TN"] // 4


def chain_fragment(made: Recipe) -> int:
    """`fragment` of chain.cu, whose fragments are several k-steps."""
    m = made.macros
    steps = 8 if m["TM"] * m["TN"] <= 2 else 4
    along_k = not m["TRANS_A"] if m["SWAPPED"] else m["TRANS_B"]
    return steps // 4 * m["TM"] + (steps // 4 * m["TN"] if along_k else steps)


def of(made: Recipe) -> list[Arrival]:
    return of_cubin(Cubin.read(made.make("cubin").code))


def of_cubin(cubin: Cubin) -> list[Arrival]:
    return [one for name in cubin.kernels for one in arrivals(Program.of(cubin, name))]


def most(found: list[Arrival]) -> int:
    """Loads under way at an arrival, where there are most."""
    assert found
    return max(len(one.loads) for one in found)


def problem(layout: str, m: int = 4096, n: int = 4096, k: int = 4096) -> Problem:
    ta, tb = (letter == "T" for letter in layout)
    return Problem(m, n, k, m if ta else k, k if tb else n, n, trans_a=ta, trans_b=tb)


@pytest.mark.parametrize("entry", ["early", "behind_a_branch", "in_a_loop"])
def test_loads_under_way_are_seen(entry: str) -> None:
    found = arrivals(Program.of(of_fixture("arrivals", entry), entry))
    assert [len(one.loads) for one in found] == [1]


@pytest.mark.parametrize("entry", ["late", "known_by_a_later_one"])
def test_loads_that_have_come_are_not(entry: str) -> None:
    found = arrivals(Program.of(of_fixture("arrivals", entry), entry))
    assert [one.loads for one in found] == [()]


WIDE_TILES = (WIDE.default, handing_on(WIDE.default), replace(WIDE.default, stages=4),
              replace(WIDE.default, bm=128, tm=8))


@pytest.mark.parametrize("config", WIDE_TILES, ids=Config.label)
def test_wide_arrives_when_its_loads_have_come(config: Config) -> None:
    assert most(of(WIDE.recipe(config, problem("TN"), "sm_90"))) == 0


def test_wide_would_not_by_itself() -> None:
    made = WIDE.recipe(WIDE.default, problem("TN"), "sm_90")
    early = made.text.replace(" + (read & w.repack.none))", ")")
    assert early != made.text and most(of(replace(made, text=early))) > 0


LARGE_TILES = [config for config in tilings(SPECIALISED, GPU) if config.slices == 1 or config.tm >= 8]


@pytest.mark.parametrize("tile", LARGE_TILES, ids=Config.label)
def test_specialised_has_its_next_stage_under_way_and_no_more(tile: Config) -> None:
    ways = [tile]
    if may_hand_on(SPECIALISED, tile):
        ways.append(handing_on(replace(tile, chunked=False)))
    for config in ways:
        made = SPECIALISED.recipe(config, problem("NN"), "sm_90")
        assert most(of(made)) <= fragment(made.macros)


@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("rows", [1, 2, 16, 32])
def test_chain_has_its_next_stage_under_way_and_no_more(rows: int, layout: str) -> None:
    narrow = problem(layout, m=rows)
    for config in islice(chains(narrow, GPU), 1):
        made = CHAIN.recipe(config, narrow, "sm_90")
        assert most(of(made)) <= chain_fragment(made)


def test_the_command_looks_where_it_is_asked_to(tmp_path: Path, run) -> None:  # noqa: F811
    file = tmp_path / "ring.cubin"
    file.write_bytes(of_fixture("arrivals", "early").data)
    code, out, _ = run("sass", "check", str(file))
    assert code == 0 and "0 hazards in" in out
    code, out, _ = run("sass", "check", str(file), "--arrivals", "--json")
    found = json.loads(out)["hazards"]
    assert code == 1 and {one["rule"] for one in found} == {"arrival"}
    assert {one["kernel"] for one in found} == {"early", "behind_a_branch", "in_a_loop"}


def test_rung_15_has_its_next_stage_under_way_and_no_more() -> None:
    config = rung(15).config_for("sm_90")
    assert most(of_cubin(of_rung(15))) <= config.tm // 4 + config.tn // 4


# Of the schemes' kernels those are scales, in a ring of their own with a slot more than there are stages: a slot is
# filled anew when the next chunk has been given back (SLOTS in product.cu and streamed.cu). And in product.cu the
# guard's verdict, which a warp of the same block stores: its store queues behind the load.
ALLOWED = {"specialised.cu": lambda made: fragment(made.macros), "wide.cu": lambda made: 0,
           "product.cu": lambda made: 2, "streamed.cu": lambda made: made.macros["BN"] // 8}


@pytest.mark.exhaustive
def test_every_kernel_of_the_library() -> None:
    count = 0
    for made, cubin in every_recipe_of_the_library():
        if found := of_cubin(cubin):
            assert most(found) <= ALLOWED[made.file](made), (made.file, made.macros, found)
            count += 1
    assert count > 300
