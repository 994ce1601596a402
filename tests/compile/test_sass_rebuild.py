"""A main loop built anew: what it is taken apart into, its order, its proof, and rung 16."""
# ruff: noqa: F811  (fixtures of tests/support)

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

from commands import fits, run  # noqa: F401
from lab.disassembler import texts
from peakgemm.errors import InvalidValue
from peakgemm.kernels import patched
from peakgemm.kernels.registry import rung
from peakgemm.runtime import nvrtc
from peakgemm.sass.edit import Unproved
from peakgemm.sass.elf import Cubin
from peakgemm.sass.facts import static_facts
from peakgemm.sass.hazards import check
from peakgemm.sass.program import Program
from peakgemm.sass.rebuild import loop as loops
from peakgemm.sass.rebuild.block import NotUnderstood, analyse
from peakgemm.sass.rebuild.loop import most_registers, rebuild, with_registers
from peakgemm.sass.rebuild.place import place
from peakgemm.sass.rebuild.recipe import Recipe
from peakgemm.sass.rebuild.search import grid, search
from peakgemm.tools.bench.ladder import static_row
from peakgemm.tools.inspect.named import named
from rung_code import build

PROVE = loops.proof.difference


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("module-cache")


@pytest.fixture(autouse=True)
def own_cache(module_cache, monkeypatch):
    """A compile cache of this module's."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(module_cache))


def config(number, **changes):
    return replace(rung(number).config_for("sm_90"), **{"aligned": True, **changes})


@cache
def compiled(number, aligned=True):
    return build(rung(number), config(number, aligned=aligned), "sm_90")


@cache
def program(number, aligned=True):
    return Program.of(Cubin.read(compiled(number, aligned).code))


@cache
def built(aligned=True):
    """The new loop of rung 14; the values that were placed for it; and what the proof compared."""
    placed, compared = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "place", lambda *rest: placed.append(rest[0]) or place(*rest))
        patch.setattr(loops.proof, "difference", lambda *rest: compared.append(rest) or PROVE(*rest))
        made = rebuild(Cubin.read(compiled(14, aligned).code), Recipe(), 255)
    names = ("compiler", "preheader", "loop", "carried", "at_start", "behind")
    return SimpleNamespace(made=made, values=placed[0], compared=dict(zip(names, compared[0], strict=True)))


def difference(**changes):
    """What the proof says of rung 14's loop with some of what it compares replaced."""
    return PROVE(**{**built().compared, **changes})


# What a loop is taken apart into


@pytest.mark.parametrize(("number", "aligned", "quads"), [(13, True, (2, 2)), (13, False, (2, 2)), (14, True, (2, 4)),
                                                          (14, False, (2, 4))])
def test_a_loop_is_steps_of_outer_products(number, aligned, quads):
    block = analyse(program(number, aligned))
    assert (block.steps, block.quads) == (16, quads)
    assert len(block.homes) == len(block.chains) == 16 * quads[0] * quads[1]
    assert len(block.loads) == 16 * sum(quads) and not block.homes & block.held_registers
    # A load's offset grows with the step: the rows of A and of B lie one after the other in shared memory.
    offsets = [block.words[block.loads[step, 0, 0]].rest >> 40 & 0xFFFFFF for step in range(1, 16)]
    assert offsets == sorted(set(offsets))


def test_a_sum_that_is_dropped_is_refused():
    words = list(program(14).words)
    at = next(at for at in range(analyse(program(14)).start, len(words)) if words[at].name == "FFMA")
    words[at] = words[at].with_numbers((250, *words[at].numbers[1:]))
    with pytest.raises(NotUnderstood, match=r"0x[0-9a-f]+: "):
        analyse(program(14).with_words(words))


def test_positions_are_those_of_the_recipe():
    values = built().values
    at, block = place(values, Recipe()), values.block
    loads = sorted(at[load] for load in block.loads.values())
    assert all(after - before >= 12 for before, after in pairwise(loads))
    barrier = next(other for other in block.others if block.words[other].name == "BAR")
    for (step, _, _), load in block.loads.items():
        assert (at[load] > at[barrier]) == (step == block.steps)


# The new loop and its proof


@pytest.mark.parametrize("aligned", [True, False])
def test_the_new_loop_is_proved_disassembles_and_is_shorter(aligned):
    made, old = built(aligned).made, compiled(14, aligned)
    fresh, block = Cubin.read(made.cubin), made.block
    assert check(made.program) == [] and all(texts(fresh.words(), "sm_90"))
    assert fresh.kernel().registers == made.registers <= 255
    before, after = static_facts(old.code, "sm_90"), static_facts(made.cubin, "sm_90")
    assert after["loop_instructions"] == made.turn < before["loop_instructions"] == made.before
    assert after["accumulators_moved"] == 0 < before["accumulators_moved"]
    assert made.cycles <= 1.02 * made.step  # hardly a bank conflict
    assert after["loads_in_a_row"] == 1 and after["bank_cycles_per_ffma"] < before["bank_cycles_per_ffma"]
    assert after["widths"] == before["widths"]  # the same accesses
    end = block.start + len(block.words)
    for outside in (slice(block.start), slice(end, None)):
        assert Cubin.read(old.code).words()[outside] == fresh.words()[outside]


def test_the_proof_finds_every_wrong_register():
    loop, draw = built().compared["loop"], Random(16)
    assert difference() is None
    for _ in range(10):
        words = list(loop)
        at, slot = draw.choice([(at, slot) for at, word in enumerate(words[:-1])
                                for slot, (field, _) in enumerate(word.named) if field.kind + field.role == "Rr"])
        word = words[at]
        other = draw.choice([number for number in range(0, 200, 4) if number != word.numbers[slot]])
        words[at] = word.with_numbers((*word.numbers[:slot], other, *word.numbers[slot + 1:]))
        assert difference(loop=words) is not None, (at, word.name, slot, other)


@pytest.mark.parametrize(("first", "second"), [("LDGSTS", "LDGSTS"), ("BAR", "LDS"), ("LDGDEPBAR", "LDGSTS")])
def test_the_proof_finds_accesses_out_of_order(first, second):
    words = list(built().compared["loop"])
    at = next(at for at, word in enumerate(words) if word.name == first)
    places = range(at, 0, -1) if first == "LDGDEPBAR" else range(at + 1, len(words))
    other = next(place for place in places if words[place].name == second)
    words[at], words[other] = words[other], words[at]
    assert difference(loop=words) is not None


def test_the_proof_finds_a_missing_copy_before_the_loop():
    before = built().compared["preheader"]
    for at in range(len(before)):
        assert "when the loop begins" in difference(preheader=[*before[:at], *before[at + 1:]])


def test_what_is_not_proved_or_has_no_registers_is_not_made(monkeypatch):
    cubin = Cubin.read(compiled(14).code)
    with pytest.raises(NotUnderstood, match="four registers in a row"):
        rebuild(cubin, Recipe(), 205)
    assert [most_registers(256), most_registers(256, 2), most_registers(1024)] == [255, 128, 64]
    with pytest.raises(InvalidValue, match="300 registers"):
        with_registers(compiled(14).code, compiled(14).entry, 300)
    monkeypatch.setattr(loops.proof, "difference", lambda *rest: "R4 ends a turn with another value")
    with pytest.raises(Unproved, match="R4 ends a turn"):
        rebuild(cubin, Recipe(), 255)


# Recipes


def test_the_grid_is_built_and_ranked():
    tried = []
    candidates = search(Cubin.read(compiled(14).code), grid()[:2], 255, done=tried.append)
    assert len(tried) == 2 and [each.slots for each in candidates] == sorted(each.slots for each in candidates)
    assert candidates[0].recipe == Recipe() and candidates[0].slots < built().made.before
    with pytest.raises(NotUnderstood):
        search(Cubin.read(compiled(12).code), grid()[:1], 255)


def test_recipes_are_read_and_refused():
    assert Recipe.from_json(json.loads(json.dumps(Recipe(gap=4).to_json()))) == Recipe(gap=4)
    for wrong, said in (({"speed": 1}, "no recipe has speed"), ({"gap": "4"}, "gap = '4'"), ([], "a JSON object"),
                        ({"gap": 0}, "gap = 0"), ({"offsets": [3, 2]}, "in rising order"),
                        ({"offsets": [True]}, "looks like")):
        with pytest.raises(InvalidValue, match=said):
            Recipe.from_json(wrong)
    assert Recipe().places(4, 64) == (2, 14, 26, 38)


# Rung 16


def test_rung_16_is_rung_14_with_its_loop_built_anew():
    made, again = (build(rung(16), config(16), "sm_90") for _ in range(2))
    assert made.note.startswith(patched.REBUILT) and (again, again.note) == (made, made.note)  # from the cache
    old = Cubin.read(compiled(14).code)
    fresh = rebuild(old, Recipe(), most_registers(config(16).block_threads, config(16).min_blocks))
    assert Cubin.read(made.code).words() == Cubin.read(fresh.cubin).words() != old.words()
    assert made.registers == fresh.registers == Cubin.read(made.code).kernel().registers
    assert build(rung(14), config(16), "sm_90").note == ""


@pytest.mark.parametrize(("odd", "count", "note"), [(2, 3, patched.REBUILT), (100, 4, "the compiler's code runs: ")])
def test_a_compiler_that_gives_other_code_is_asked_again(cold, monkeypatch, odd, count, note):
    """NVRTC gives the code of another rung ``odd`` times, then what was asked for; but it is not asked for ever."""
    asked, real, other = [], nvrtc.build, rung(12)

    def unsteady(text, name, flags, instance):
        asked.append(name)
        if len(asked) > odd:
            return real(text, name, flags, instance)
        macros = [f"--define-macro={key}={value}" for key, value in other.config_for("sm_90").macros().items()]
        made = real(other.source, name, [flag for flag in flags if "macro" not in flag] + macros, instance)
        return made._replace(log=made.log.replace(other.entry, rung(14).entry))

    monkeypatch.setattr(nvrtc, "build", unsteady)
    monkeypatch.setattr(patched, "TRIES", 4)
    assert build(rung(16), config(16), "sm_90").note.startswith(note)
    build(rung(14), config(16), "sm_90")
    assert len(asked) == count  # both rungs are one compilation, kept


@pytest.mark.parametrize(("arch", "changes", "said"), [
    ("sm_90", {"raster": 4}, "the recipe is for the tile"), ("sm_80", {}, "for sm_90 alone, not sm_80"),
    ("sm_90", {"aligned": False}, "not for the guarded path")])
def test_another_compilation_runs_as_it_is_and_says_so(arch, changes, said):
    asked = replace(rung(16).config_for(arch), **{"aligned": True, **changes})
    made = build(rung(16), asked, arch)
    assert said in made.note and made.code == build(rung(14), asked, arch).code


def test_inspect_and_the_record_say_what_runs():
    assert patched.REBUILT in named("16", "sm_90").notes[0].lower() and named("14", "sm_90").notes == ()
    assert "guarded path" in named("16", "sm_90", shape="100x100x100").notes[0]
    assert static_row(rung(16), config(16), "sm_90")["patch"].startswith(patched.REBUILT)


def test_optimize_writes_what_it_proved(run, tmp_path):
    new = tmp_path / "new.cubin"
    status, out, err = run("sass", "optimize", "16", "--recipe", json.dumps(Recipe().to_json()), "-o", str(new))
    assert (status, err) == (0, "") and fits(out)
    assert "instructions a turn" in out and "instructions left the loop" in out
    rebuilt = build(rung(16), config(16), "sm_90")
    assert Cubin.read(new.read_bytes()).words() == Cubin.read(rebuilt.code).words()


@pytest.mark.parametrize(("words", "status", "said"), [
    (["12"], 2, "not one block that branches to itself"), (["13,14"], 2, "names 2 rungs"), (["99"], 2, "unknown rung"),
    (["14", "--recipe", "{"], 2, "no JSON"), (["14", "--recipe", "/nowhere.json"], 2, "cannot be read"),
    (["13"], 2, "left"), (["0"], 2, "LDG in the loop"),
    # Positions give way where dependences leave less room than the recipe asks.
    (["14", "--recipe", '{"gap": 1000}'], 0, "14 large"),
])
def test_optimize_refuses(run, words, status, said):
    code, out, err = run("sass", "optimize", *words)
    assert code == status and said in (err if status else out)
