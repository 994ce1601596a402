"""Rung 16 gives rung 14's bits, and a loop that is built anew in another way gives them too."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch as reference")

from peakgemm.calls.rung import run_rung  # noqa: E402
from peakgemm.kernels.patched import REBUILT  # noqa: E402
from peakgemm.kernels.registry import rung  # noqa: E402
from peakgemm.runtime import device  # noqa: E402
from peakgemm.sass.elf import Cubin  # noqa: E402
from peakgemm.sass.program import Program  # noqa: E402
from peakgemm.sass.rebuild.loop import rebuild  # noqa: E402
from peakgemm.sass.rebuild.recipe import Recipe  # noqa: E402
from peakgemm.tools.bench.peers import visiting  # noqa: E402
from peakgemm.tools.bench.rebuilt import Contest, OtherBits, contest  # noqa: E402
from rung_code import build  # noqa: E402

GPU = device.find()
pytestmark = pytest.mark.skipif(GPU is None or GPU.arch != "sm_90", reason="loops are built anew for sm_90")


def config(number, aligned=True):
    return replace(rung(number).config_for("sm_90"), aligned=aligned)


def bits(number, a, b, c, alpha, beta):
    out = c.clone()
    run_rung(number, a, b, out, alpha=alpha, beta=beta)
    return out.view(torch.int32)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (2.0, 0.5), (-0.5, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("shape", [(128, 256, 16), (128, 256, 48), (256, 512, 64), (384, 768, 80), (1024, 1024, 1024),
                                   (2048, 512, 4096), (4096, 4096, 4096), (257, 129, 65)], ids=str)
def test_the_bits_are_those_of_rung_14(shape, alpha, beta):
    assert build(rung(16), config(16), "sm_90").note.startswith(REBUILT)
    m, n, k = shape
    torch.manual_seed(m + n + k)
    a, b, c = (torch.randn(size, device="cuda") for size in ((m, k), (k, n), (m, n)))
    for _ in range(3):
        assert torch.equal(bits(16, a, b, c, alpha, beta), bits(14, a, b, c, alpha, beta))


EARLY = Recipe(offsets=(2, 18, 34, 50, 66, 82), barrier=-16, gap=4)
RECIPES = [Recipe(), Recipe(first=Recipe().offsets), EARLY]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_other_recipes_give_the_compilers_bits(recipe, aligned):
    compiled = build(rung(14), config(14, aligned), "sm_90")
    built = rebuild(Cubin.read(compiled.code), recipe, 255)
    with visiting() as peer:
        field = Contest(rung(14), config(14, aligned), compiled, 1024, GPU, peer)
        assert field.same_bits(replace(compiled, code=built.cubin, registers=built.registers, remake=None))


def test_other_bits_are_refused():
    compiled = build(rung(14), config(14), "sm_90")
    cubin = Cubin.read(compiled.code)
    program = Program.of(cubin)
    place = next(place for place in program.loop_blocks[0] if program.words[place].name == "FFMA")
    words = list(program.words)
    word = words[place].renamed({})
    accumulator = word.bits >> 64 & 0xFF
    words[place] = replace(word, bits=word.bits & ~(0xFF << 24) | accumulator << 24)  # a factor, too
    wrong = replace(compiled, code=cubin.with_words(program.with_words(words).encode()), remake=None)
    with visiting() as peer, pytest.raises(OtherBits, match="it does not give the bits"):
        contest(rung(14), config(14), compiled, {"wrong": wrong}, 1024, GPU, peer)
