"""Families of kernels: nobody outside asks which is at hand, what the models propose is valid, and what is chosen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest

import peakgemm
from peakgemm.kernels import library
from peakgemm.kernels.ffma import skinny, small
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.tile_model import tilings
from peakgemm.kernels.ffma.tiled import cluster_split, schedule
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import EMULATED, KERNELS
from peakgemm.kernels.profile import Profile
from peakgemm.kernels.registry import LADDER, Kernel
from peakgemm.kernels.validity import violations
from peakgemm.problem import Batch, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.selection.choose import candidates, chains, choose
from peakgemm.selection.machine import machine
from peakgemm.tools.bench.suites import cases

GPU = machine("sm_90", 132)

# ---- families ------------------------------------------------------------------------------------------------

PACKAGE = Path(peakgemm.__file__).parent
OWN = ("kernels/ffma/", "kernels/emulated/")  # where families are
NAMES = {"PRODUCTS", "OLDER", "KERNELS", "EMULATED",
         *(name for name, value in vars(library).items() if isinstance(value, Kernel))}
FACTS = (".folder", ".kernel.name", ".family.name", "arch.number", "limits.number")


def questions(text: str) -> Iterator[int]:
    """The lines that compare a kernel with one of the library's, its folder or name with a word, or an architecture's
    number with another; or that ask for the type of what was bound."""
    tree = ast.parse(text)
    others = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
              and "kernels" not in (node.module or "") for alias in node.names}
    others |= {ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [each for side in (node.left, *node.comparators) for each in getattr(side, "elts", [side])]
            words = [ast.unparse(side) for side in sides]
            constant = any(isinstance(side, ast.Constant) for side in sides)
            kernels = {word.removesuffix(".values()").rpartition(".")[2] for word in words} & NAMES - others
            if kernels or (constant and any(word.endswith(FACTS) for word in words)):
                yield node.lineno
        elif (isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
              and ast.unparse(node.args[1]) in ("Bound", "Family")):
            yield node.lineno


def test_nobody_asks_which_kernel_it_is() -> None:
    for question in ("kernel is WIDE", "kernel not in (SMALL, CHAIN)", 'kernel.folder == "emulated"',
                     'choice.kernel.name == "wide"', "kernel in PRODUCTS.values()", "gpu.arch.number >= 90",
                     "isinstance(bound, Bound)"):
        assert list(questions(f"if {question}:\n    pass")), question
    asked = [f"{path.relative_to(PACKAGE)}:{line}" for path in sorted(PACKAGE.rglob("*.py"))
             if not path.relative_to(PACKAGE).as_posix().startswith(OWN) for line in questions(path.read_text())]
    assert asked == []


@pytest.mark.parametrize("kernel", [*KERNELS, *EMULATED], ids=lambda kernel: f"{kernel.label} {kernel.family.name}")
def test_a_kernel_is_two_files(kernel: Kernel) -> None:
    """Its source, and the module of its family, of the same name or that of another kernel by the same scheme."""
    assert kernel.path.is_file()
    assert kernel.family.numbers in {field.name for field in fields(Profile)}, (
        "Family.numbers names the section of a profile that the cost model reads; another family's will do at first")
    assert kernel.path.with_suffix(".py").is_file() or kernel.stem == "product_mma"


def test_no_two_kernels_have_one_name() -> None:
    names = [(kernel.name, kernel.family.name) for kernel in (*KERNELS, *EMULATED)]
    assert len(set(names)) == len(names)
    assert len({kernel.entry for kernel in LADDER}) == len(LADDER) - sum(kernel.patched for kernel in LADDER)


# ---- what is proposed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_every_configuration_is_valid_where_it_is_proposed(arch: str) -> None:
    limits = architecture(arch)
    gpu = machine(arch, limits.gpu_sms)
    named = [(kernel, config) for kernel in KERNELS for config in kernel.family.configs(kernel, gpu)]
    for m, n, k in product((1, 3, 16, 5000), (2, 16, 700), (1, 64, 5000)):
        problem = Problem.contiguous(m, n, k)
        proposed = [each[:2] for each in (*candidates(problem, gpu), *chains(problem, gpu))]
        for kernel, config in dict.fromkeys((*named, *proposed)):
            assert arch == "sm_90" or (config.cluster == 1 and not getattr(config, "registers", 0))
            assert not violations(kernel, config, limits)


def test_how_a_tile_adds_up_is_its_own_property() -> None:
    """Sums of chunks where a thread has few results and registers for a second set; one chain elsewhere."""
    configs = list(tilings(SPECIALISED, GPU))
    assert all(c.chunked == (c.tm * c.tn <= 32 and c.min_blocks <= 2) for c in configs)
    assert len({replace(config, chunked=False) for config in configs}) == len(configs)
    for k in (8, 32, 64, 200):
        assert all(tile.chunked == (k > 32 and tile.tm * tile.tn <= 16) for tile in small.tiles(k))


@pytest.mark.parametrize(("change", "width"), [
    ({}, 4), ({"alignment": (8, 16, 16)}, 1), ({"lda": 4097}, 1), ({"m": 8191}, 4),
    ({"batch": Batch((2,), (2,), (0,), (8192 * 4,), (0,))}, 1),
    ({"alignment": (16, 4, 4), "ldb": 5}, 4),  # the small operand's do not matter
    ({"trans_a": True, "lda": 8192, "m": 8191}, 1)])  # along the rows a last float4 must not end past the last row
def test_vector_loads_only_where_addresses_allow(change: dict[str, int], width: int) -> None:
    assert skinny.width(replace(Problem.contiguous(8192, 4, 4096), **change)) == width


# ---- what is chosen --------------------------------------------------------------------------------------------


def canonical(text: str) -> Problem:
    """Of MxNxK[:layout][*batch]."""
    m, n, k = (int(size) for size in text.partition(":")[0].partition("*")[0].split("x"))
    return Problem.contiguous(m, n, k) if 0 in (m, n, k) else cases(text)[0].problem()[0]


@pytest.mark.parametrize(("products", "kernel", "arch", "precision"), [
    ("8x8x8*50000 16x16x16*20000 32x32x32*10000 1000000x16x16 262144x32x32 16x16x16 68x172x5", "small", "sm_90",
     "ieee"),
    ("32x32x32 102x133x51 406x38x32 10x18x34 2048x2048x2048", "specialised", "sm_90", "ieee"),
    ("2x1000x640", "skinny", "sm_90", "ieee"),
    ("8192x8192x8192 8192x8192x8192:NT 16384x16384x16384:TT", "wide", "sm_90", "ieee"),
    ("1000x1000x1000 32x32x32", "staged", "sm_75", "ieee"), ("4096x4096x4096", "fp16x3", "sm_90", "emulated"),
    ("32x32x32", "specialised", "sm_90", "emulated"),
    # Chains, where there are few rows or columns.
    *((" ".join(f"{n}x4096x4096 {n}x4096x4096:NT 4096x{n}x4096" for n in (1, 2, 5, 16, 32)), "chain", arch,
       "reproducible") for arch in ("sm_80", "sm_90")),
    ("5x4096x4096 4096x32x4096", "staged", "sm_75", "reproducible")])
def test_chosen(products: str, kernel: str, arch: str, precision: str) -> None:
    for text in products.split():
        sms = {"sm_75": 40, "sm_80": 108, "sm_90": 132}[arch]
        assert choose(canonical(text), arch, sms, "", precision).kernel.name == kernel, text


@pytest.mark.parametrize(("text", "kernel", "gpu", "proposed"), [
    *((text, SMALL, GPU, True) for text in ("8x8x8", "64x1000000x64", "2833x3567x8", "5000x16x32", "5000x4x48",
                                            "128x20x256*3000", "128x64x65*3000")),
    *((text, SMALL, GPU, False) for text in ("8x8x65", "2000x2000x65", "5000x4x65", "5000x1x65", "128x20x257*3000",
                                             "128x65x65*3000")),
    ("8x8x8", SMALL, machine("sm_75", 40), False), ("8192x8192x8192", WIDE, machine("sm_90", 108), True),
    ("8192x8192x8192", WIDE, machine("sm_80", 108), False), ("32768x32768x32768", WIDE, GPU, False),  # over 2 GB
    ("4x4096x4096", CHAIN, GPU, False)], ids=lambda x: getattr(x, "name", None) or str(getattr(x, "arch", x))[:24])
def test_proposed(text: str, kernel: Kernel, gpu: object, proposed: bool) -> None:
    assert (kernel in {each.kernel for each in candidates(canonical(text), gpu)}) == proposed


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("text", ["4x0x5", "0x4x5", "4x4x0", "0x0x0", "1x1x1"])
def test_products_with_nothing_in_them_have_a_choice(arch: str, text: str) -> None:
    """`peakgemm.plan` and `explain` ask for one before anything is launched."""
    for precision in ("ieee", "emulated"):
        assert choose(canonical(text), arch, 132, precision=precision).reason


def test_how_small_products_are_cut() -> None:
    """Whole tiles of a block each; ranges of a long K, no more than SMs; clusters, if they leave room for the launch
    before, by which no short K is cut, nor on a GPU without them."""
    cuts = {"whole": "128x128x128 64x64x64 320x320x320 42x5x116", "parts": "64x64x4096 100x100x1500 106x46x3667",
            "cluster": "32x32x1024 16x16x2000 33x33x700 128x128x512", "shared": "8192x64x8192"}
    for cut, text in ((cut, text) for cut, products in cuts.items() for text in products.split()):
        config = choose(canonical(text), "sm_90", 132).config
        assert cut == ("cluster" if cluster_split(config) else "shared" if not config.one_tile else
                       "parts" if config.split > 1 else "whole"), text
        assert cut != "parts" or config.tiles(canonical(text)) * config.split <= 132
    for text, sms in product(("32x32x1024", "128x128x512"), (132, 114, 60)):
        problem = canonical(text)
        clusters = [c for _, c, _ in candidates(problem, machine("sm_90", sms)) if cluster_split(c)]
        assert all(2 * schedule(c, problem, sms).blocks < sms and not schedule(c, problem, sms).workspace_bytes
                   and c.cluster <= (16 if sms == 132 else 8) for c in clusters)
        assert not any(cluster_split(config) for _, config, _ in candidates(problem, machine("sm_89", sms)))


@pytest.mark.parametrize(("text", "shared"), [
    ("1x8192x8192", False), ("8192x1x8192", False), ("16x4096x4096", False), ("4096x8x4096", False),
    ("1x1x16777216", True), ("256x1x65536", True)])
def test_thin_products_fill_the_gpu_in_one_launch_or_share_a_long_k(text: str, shared: bool) -> None:
    problem = canonical(text)
    config = min(skinny.configurations(problem, GPU), key=lambda c: skinny.estimate_us(c, problem, GPU))
    plan = SKINNY.family.schedule(config, problem, 132)
    assert plan.blocks >= 120 and (plan.parts > 1) == (plan.reduce_blocks > 0) == (plan.workspace_bytes > 0) == shared


@pytest.mark.parametrize("m", [20, 127, 512])
@pytest.mark.parametrize("k", [33, 64, 320, 1500])
def test_an_ieee_product_runs_what_an_emulated_one_runs_without_tensor_cores(m: int, k: int) -> None:
    """So that "emulated" is never slower."""
    for n in (30, 100, 512, 1000):
        problem = Problem.contiguous(m, n, k)
        plain, emulated = choose(problem, "sm_90", 132), choose(problem, "sm_90", 132, precision="emulated")
        assert emulated.kernel in EMULATED or (plain.kernel, plain.config) == (emulated.kernel, emulated.config)
