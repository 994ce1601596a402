"""A main loop built anew: what it is taken apart into, its order, its proof, and rung 16."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

from commands import fits, run
from lab.disassembler import texts
from peakgemm.errors import InvalidValue
from peakgemm.kernels import patched
from peakgemm.kernels.registry import rung
from peakgemm.runtime import nvrtc
from peakgemm.sass.edit import Unproved
from peakgemm.sass.elf import Cubin
from peakgemm.sass.encoding import Register
from peakgemm.sass.facts import static_facts
from peakgemm.sass.hazards import check
from peakgemm.sass.latency import safe
from peakgemm.sass.liveness import live, live_behind
from peakgemm.sass.program import Program
from peakgemm.sass.rebuild import loop as loops
from peakgemm.sass.rebuild import proof
from peakgemm.sass.rebuild.block import NotUnderstood, analyse
from peakgemm.sass.rebuild.copies import hoist, merge
from peakgemm.sass.rebuild.emit import emit
from peakgemm.sass.rebuild.loop import most_registers, rebuild, with_registers
from peakgemm.sass.rebuild.order import cycles, order
from peakgemm.sass.rebuild.place import place
from peakgemm.sass.rebuild.recipe import Recipe
from peakgemm.sass.rebuild.search import grid, search
from peakgemm.sass.rebuild.values import Values, rename
from peakgemm.tools.bench.ladder import static_row
from peakgemm.tools.inspect.named import named
from rung_code import build


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("module-cache")


@pytest.fixture(autouse=True)
def own_cache(module_cache, monkeypatch):
    """A compile cache of this module's."""
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(module_cache))


@cache
def compiled(number, aligned=True):
    return build(rung(number), replace(rung(number).config_for("sm_90"), aligned=aligned), "sm_90")


@cache
def cubin(number, aligned=True):
    return Cubin.read(compiled(number, aligned).code)


@cache
def program(number, aligned=True):
    return Program.of(cubin(number, aligned))


@cache
def built(aligned=True, recipe=None):
    return rebuild(cubin(14, aligned), recipe or Recipe(), 255)


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


@pytest.mark.parametrize(("number", "said"), [(12, "not one block"), (0, "LDG in the loop"), (5, "the main loop")])
def test_other_loops_are_refused_with_what_and_where(number, said):
    with pytest.raises(NotUnderstood, match=rf"sgemm_.*{said}|sgemm_.*0x[0-9a-f]+"):
        analyse(program(number))


def test_a_loop_that_ends_elsewhere_is_refused():
    whole = program(14)
    block = analyse(whole)
    at = next(one for one in range(block.start, block.start + len(block.words)) if whole.words[one].name == "FFMA")
    words = list(whole.words)
    words[at] = words[at].with_numbers((250, *words[at].numbers[1:]))  # a sum that is dropped
    with pytest.raises(NotUnderstood, match=r"0x[0-9a-f]+: "):
        analyse(whole.with_words(words))


@pytest.mark.parametrize("number", [13, 14])
def test_the_order_has_no_bank_conflict(number):
    block = analyse(program(number))
    made = order(block)
    assert {(one.row, one.column) for one in made} == set(block.chains)
    assert cycles(block, made) == block.step
    assert all(first.column == second.column for first, second in zip(made[::2], made[1::2], strict=True))
    shuffled = list(made)
    Random(1).shuffle(shuffled)
    assert cycles(block, shuffled) > 1.05 * block.step


def test_live_registers_are_those_that_nvdisasm_shows():
    whole = program(14)
    known, block = live(whole), analyse(whole)
    behind = live_behind(whole, block.start, known)
    assert {Register("R", home) for home in block.homes} <= known[block.start] & behind
    assert {Register("R", one) for one in block.held_registers} <= known[block.start]
    dead = {Register("R", number) for number in range(205, 255)}
    assert not dead & known[block.start]


def values(recipe):
    block, whole = analyse(program(14)), program(14)
    found = Values.of(block)
    if recipe.merge:
        merge(found)
    rename(found, block.homes | block.held_registers, list(range(208, 254)))
    if recipe.hoist:
        hoist(found, live_behind(whole, block.start, live(whole)))
    return found


def test_copies_leave_the_loop():
    kept, left = values(Recipe(hoist=False, merge=False)), values(Recipe())
    assert len(left.preheader) == 13 and len(kept.places) == len(left.places) + 14
    assert {source.kind for source in left.carried.values()} == {"R", "UR"}


def test_positions_keep_dependences_and_the_recipes_gap():
    recipe = Recipe()
    found = values(recipe)
    at = place(found, recipe)
    block = found.block
    loads = sorted(at[one] for one in block.loads.values())
    assert all(after - before >= 12 for before, after in pairwise(loads))
    others = sorted(at[one] for one in found.places if one in block.others and one in at)
    assert others[-1] < block.steps * block.step and all(position % 2 == 0 for position in at.values())
    barrier = next(one for one in block.others if block.words[one].name == "BAR")
    for (step, _, _), one in block.loads.items():
        assert (at[one] > at[barrier]) == (step == block.steps)
    with pytest.raises(InvalidValue, match="gap = 0"):
        Recipe(gap=0)


def test_positions_leave_what_ptxas_leaves_between_pipes():
    found = values(Recipe())
    at, words = place(found, Recipe()), found.block.words
    pairs = [(source, reader, register) for reader in found.places if reader in at
             for register, source in found.sources[reader].items()
             if source in at and not words[source].queue]
    assert len(pairs) > 30
    for source, reader, register in pairs:
        assert at[reader] - at[source] >= safe(words[source], words[reader], register)


@pytest.mark.parametrize("aligned", [True, False])
def test_the_new_loop_is_proved_disassembles_and_is_shorter(aligned):
    made = built(aligned)
    assert check(made.program) == [] and made.turn < made.before and made.registers <= 255
    fresh = Cubin.read(made.cubin)
    assert fresh.kernel().registers == made.registers
    facts, old = static_facts(made.cubin, "sm_90"), static_facts(compiled(14, aligned).code, "sm_90")
    assert facts["loop_instructions"] == made.turn < old["loop_instructions"]
    assert facts["accumulators_moved"] == 0 < old["accumulators_moved"]
    assert facts["loads_in_a_row"] == 1 and facts["bank_cycles_per_ffma"] < old["bank_cycles_per_ffma"]
    assert facts["widths"] == old["widths"]  # the same accesses
    assert all(texts(fresh.words(), "sm_90"))


def test_code_before_and_behind_the_loop_stays():
    block = analyse(program(14))
    old, new = cubin(14).words(), Cubin.read(built().cubin).words()
    end = block.start + len(block.words)
    assert old[:block.start] == new[:block.start] and old[end:] == new[end:]


@cache
def parts():
    """What the proof compares, for the aligned loop of rung 14."""
    recipe, whole = Recipe(), program(14)
    block, known = analyse(whole), live(whole)
    behind = live_behind(whole, block.start, known)
    found = Values.of(block)
    merge(found)
    free = loops._free(found, known[block.start] | behind, 255)
    fragments = loops._fragments(block, free)
    rename(found, block.homes | block.held_registers, free)
    hoist(found, behind)
    made = emit(found, place(found, recipe), order(block), fragments, recipe)
    return block, made, found, known[block.start], behind


def test_the_proof_finds_every_wrong_register():
    block, made, found, at_start, behind = parts()
    assert proof.difference(block.words, made.preheader, made.loop, found.carried, at_start, behind) is None
    draw = Random(16)
    for _ in range(20):
        words = list(made.loop)
        at, slot = draw.choice([(at, slot) for at, word in enumerate(words[:-1])
                                for slot, (field, _) in enumerate(word.named) if field.kind + field.role == "Rr"])
        word = words[at]
        other = draw.choice([one for one in range(0, 200, 4) if one != word.numbers[slot]])
        words[at] = word.with_numbers((*word.numbers[:slot], other, *word.numbers[slot + 1:]))
        said = proof.difference(block.words, made.preheader, words, found.carried, at_start, behind)
        assert said is not None, (at, word.name, slot, other)


@pytest.mark.parametrize(("first", "second"), [("LDGSTS", "LDGSTS"), ("BAR", "LDS"), ("LDGDEPBAR", "LDGSTS")])
def test_the_proof_finds_accesses_out_of_order(first, second):
    block, made, found, at_start, behind = parts()
    words = list(made.loop)
    one = next(at for at, word in enumerate(words) if word.name == first)
    places = range(one, 0, -1) if first == "LDGDEPBAR" else range(one + 1, len(words))
    two = next(at for at in places if words[at].name == second)
    words[one], words[two] = words[two], words[one]
    assert proof.difference(block.words, made.preheader, words, found.carried, at_start, behind) is not None


def test_the_proof_finds_a_missing_copy_before_the_loop():
    block, made, found, at_start, behind = parts()
    for at in range(len(made.preheader)):
        left = [*made.preheader[:at], *made.preheader[at + 1:]]
        assert "when the loop begins" in proof.difference(block.words, left, made.loop, found.carried, at_start, behind)


def test_an_unproved_loop_is_not_made(monkeypatch):
    monkeypatch.setattr(loops.proof, "difference", lambda *rest: "R4 ends a turn with another value")
    with pytest.raises(Unproved, match="R4 ends a turn"):
        rebuild(cubin(14), Recipe(), 255)


def test_too_few_registers_are_said():
    with pytest.raises(NotUnderstood, match="four registers in a row"):
        rebuild(cubin(14), Recipe(), 205)
    assert most_registers(256) == 255 and most_registers(256, 2) == 128 and most_registers(1024) == 64
    with pytest.raises(InvalidValue, match="300 registers"):
        with_registers(compiled(14).code, compiled(14).entry, 300)


def test_the_grid_is_built_and_ranked():
    tried = []
    found = search(cubin(14), grid()[:2], 255, done=tried.append)
    assert len(tried) == 2 and [one.slots for one in found] == sorted(one.slots for one in found)
    assert found[0].recipe == Recipe() and found[0].slots < built().before
    with pytest.raises(NotUnderstood):
        search(cubin(12), grid()[:1], 255)


def test_recipes_are_read_and_refused():
    assert Recipe.from_json(json.loads(json.dumps(Recipe(gap=4).to_json()))) == Recipe(gap=4)
    for wrong, said in (({"speed": 1}, "no recipe has speed"), ({"gap": "4"}, "gap = '4'"), ([], "a JSON object"),
                        ({"offsets": [3, 2]}, "in rising order"), ({"offsets": [True]}, "looks like")):
        with pytest.raises(InvalidValue, match=said):
            Recipe.from_json(wrong)
    assert Recipe().places(4, 64) == (2, 14, 26, 38)


def test_rung_16_is_rung_14_with_its_loop_built_anew():
    config = replace(rung(16).config_for("sm_90"), aligned=True)
    made = build(rung(16), config, "sm_90")
    assert made.note.startswith(patched.REBUILT)
    again = build(rung(16), config, "sm_90")
    assert again == made and again.note == made.note  # from the cache
    cubin = Cubin.read(compiled(14).code)
    fresh = loops.rebuild(cubin, Recipe(), loops.most_registers(config.block_threads, config.min_blocks))
    assert Cubin.read(made.code).words() == Cubin.read(fresh.cubin).words() != cubin.words()
    assert made.registers == fresh.registers == Cubin.read(made.code).kernel().registers
    assert build(rung(14), config, "sm_90").note == ""


@pytest.fixture
def unsteady(monkeypatch):
    """NVRTC gives the code of another rung ``odd`` times, then what was asked for; ``count`` is how often it
    was asked."""
    seen, real = SimpleNamespace(count=0, odd=0), nvrtc.build

    def asked(text, name, flags, instance):
        seen.count += 1
        if seen.count > seen.odd:
            return real(text, name, flags, instance)
        other = rung(12)
        made = real(other.source, name, [one for one in flags if "macro" not in one] + [
            f"--define-macro={key}={value}" for key, value in other.config_for("sm_90").macros().items()], instance)
        return made._replace(log=made.log.replace(other.entry, rung(14).entry))

    monkeypatch.setattr(nvrtc, "build", asked)
    return seen


def test_a_compiler_that_gives_other_code_is_asked_again(unsteady, cold):
    unsteady.odd = 2
    config = replace(rung(16).config_for("sm_90"), aligned=True)
    made = build(rung(14), config, "sm_90")
    assert build(rung(16), config, "sm_90").note.startswith(patched.REBUILT)
    assert build(rung(14), config, "sm_90") == made and unsteady.count == 3  # both are one compilation, kept


def test_a_compiler_is_not_asked_for_ever(unsteady, cold, monkeypatch):
    monkeypatch.setattr(patched, "TRIES", 3)
    unsteady.odd = 100
    made = build(rung(16), replace(rung(16).config_for("sm_90"), aligned=True), "sm_90")
    assert made.note.startswith("the compiler's code runs: ") and unsteady.count == 3


@pytest.mark.parametrize(("arch", "changes", "said"), [
    ("sm_90", {"raster": 4}, "the recipe is for the tile"), ("sm_80", {}, "for sm_90 alone, not sm_80"),
    ("sm_90", {"aligned": False}, "not for the guarded path")])
def test_another_compilation_runs_as_it_is_and_says_so(arch, changes, said):
    config = replace(rung(16).config_for(arch), **{"aligned": True, **changes})
    made = build(rung(16), config, arch)
    assert said in made.note and made.code == build(rung(14), config, arch).code


def test_calls_load_no_instrument():
    said = "import sys, peakgemm, peakgemm.calls.rung, peakgemm.kernels.library; " \
           "print([name for name in sys.modules if name.startswith('peakgemm.sass')])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_inspect_and_the_record_say_what_runs():
    first, second = named("16", "sm_90").notes
    assert patched.REBUILT in first.lower() and second.startswith("Source lines within its loop")
    assert named("14", "sm_90").notes == ()
    assert "guarded path" in named("16", "sm_90", shape="100x100x100").notes[0]
    aligned = replace(rung(16).config_for("sm_90"), aligned=True)
    assert static_row(rung(16), aligned, "sm_90")["patch"].startswith(patched.REBUILT)
    assert "patch" not in static_row(rung(14), aligned, "sm_90")


def test_optimize_writes_what_it_proved(run, tmp_path):
    new = tmp_path / "new.cubin"
    status, out, err = run("sass", "optimize", "16", "--recipe", json.dumps(Recipe().to_json()), "-o", str(new))
    assert (status, err) == (0, "") and fits(out)
    assert "instructions a turn" in out and "instructions left the loop" in out
    rebuilt = build(rung(16), replace(rung(16).config_for("sm_90"), aligned=True), "sm_90")
    assert Cubin.read(new.read_bytes()).words() == Cubin.read(rebuilt.code).words()
    assert run("sass", "check", str(new))[0] == 0


@pytest.mark.parametrize(("words", "said"), [
    (["12"], "not one block that branches to itself"), (["13,14"], "names 2 rungs"), (["99"], "unknown rung"),
    (["14", "--recipe", "{"], "no JSON"), (["14", "--recipe", "/nowhere.json"], "cannot be read"),
    (["14", "--recipe", '{"gap": 1000}'], "14 large"), (["13"], "left"),
])
def test_optimize_refuses(run, words, said):
    status, out, err = run("sass", "optimize", *words)
    if said == "14 large":  # positions give way where dependences leave less room than the recipe asks
        assert status == 0 and said in out
    else:
        assert status == 2 and said in err and err.startswith("peakgemm: ")
