"""Every family of kernels and every rung on the GPU: the simulator's tables of products, products drawn at random, and
sizes that are for a GPU alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch for their memory")

import family_cases  # noqa: E402
import peakgemm as pg  # noqa: E402
from library_case import LAYOUTS, Case, multiply  # noqa: E402
from peakgemm.calls.rung import run_rung  # noqa: E402
from peakgemm.kernels import validity  # noqa: E402
from peakgemm.kernels.bound import bind  # noqa: E402
from peakgemm.kernels.ffma.specialised import SPECIALISED  # noqa: E402
from peakgemm.kernels.ffma.tile_model import may_hand_on, tilings  # noqa: E402
from peakgemm.kernels.ffma.wide import WIDE  # noqa: E402
from peakgemm.kernels.registry import LADDER, Kernel, rung  # noqa: E402
from peakgemm.kernels.rung import RungConfig  # noqa: E402
from peakgemm.kernels.schedule import handing_on  # noqa: E402
from peakgemm.problem import Config, Problem, varied  # noqa: E402
from peakgemm.runtime import device  # noqa: E402
from peakgemm.selection.machine import machine  # noqa: E402

GUARD = 64  # floats before and after each matrix
NAN = float("nan")
HERE = device.find()
RUNGS = [kernel for kernel in LADDER if HERE is None or kernel.lacks(HERE.limits) is None]


def launch(kernel: Kernel, config: Config, problem: Problem, a: Any, b: Any, c: Any, c0: Any = None, sms: int = 0,
           space: Any = None) -> Any:
    """Run, in a workspace full of what flags never are, or of what they are at the end; the workspace."""
    gpu = device.require()
    bound = bind(kernel, config, problem, replace(gpu, sm_count=sms or gpu.sm_count))
    if space is None:
        space = torch.full((bound.workspace_bytes // 4 + 1,), NAN, device="cuda")
    bound.launch(*(x.data_ptr() for x in (a, b, c, c if c0 is None else c0, space)),
                 torch.cuda.current_stream().cuda_stream)
    return space


def on_gpu(kernel: Kernel, config: Config, problem: Problem, a: Any, b: Any, c: Any, c0: Any = None, *, arch: str,
           sm_count: int) -> list[Any]:
    """`run_library`'s arguments on the GPU, in copies within NaN; nothing beside them is written."""
    rooms, copies = [], []
    for x, alignment in zip((a, b, c, c0), (*problem.alignment, 16), strict=True):
        if x is None:
            copies.append(None)
            continue
        start = GUARD + (alignment < 16)
        rooms.append(torch.full((x.size + 2 * GUARD,), NAN, device="cuda"))
        copies.append(rooms[-1][start:start + x.size])
        copies[-1].copy_(torch.from_numpy(np.ascontiguousarray(x)))
    launch(kernel, config, problem, *copies, sms=sm_count)
    c[...] = copies[2].cpu().numpy()
    for room, copy in zip(rooms, filter(lambda copy: copy is not None, copies), strict=True):
        copy.fill_(NAN)
        assert bool(torch.isnan(room).all()), "floats beside a matrix were written"
    return []


def check(case: Case, seed: int = 0) -> None:
    gpu = device.require()
    if case.kernel.lacks(gpu.limits) or not (case.config is None or validity.is_valid(case.kernel, case.config,
                                                                                      gpu.limits)):
        pytest.skip(f"not for {gpu.arch}")
    multiply(replace(case, arch=gpu.arch), seed, on_gpu)


@pytest.mark.parametrize("case", family_cases.products())
def test_products(case: Case) -> None:
    check(case)


# ---- the ladder, drawn -------------------------------------------------------------------------------------------

SIZES = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
SCALARS = [0.0, 1.0, -0.5, 2.0]
CONFIGS = [(kernel, config) for kernel in RUNGS
           for config in dict.fromkeys((kernel.config_for(HERE.arch if HERE else "sm_90"), *kernel.named.values()))]
CONFIGS += [(rung(number), RungConfig(*tile, stages=stages, fragments=fragments))
            for number, tile, stages, fragments in (
                (11, (32, 64, 16, 4, 8), 1, 1), (11, (128, 64, 8, 16, 8), 2, 2), (11, (64, 128, 32, 4, 4), 2, 2),
                (11, (96, 64, 8, 12, 8), 2, 2), (12, (64, 64, 16, 8, 4), 2, 2), (13, (64, 64, 8, 8, 8), 4, 2),
                (14, (256, 64, 8, 16, 8), 5, 2), (14, (128, 128, 8, 4, 16), 2, 2))]


def drawn(kernel: Kernel, config: Config, count: int) -> Iterator[Case]:
    """Each edge size in each place at least once, then mixed draws; multiples of the tile, aligned."""
    draw = random.Random(kernel.number)
    shapes = [tuple(size if i == place else draw.choice(SIZES) for i in range(3))
              for size in SIZES for place in range(3)]
    shapes += [tuple(draw.choice(SIZES) for _ in range(3)) for _ in range(count - len(shapes))]
    for shape in shapes:
        alpha, beta = draw.choice(SCALARS), draw.choice(SCALARS)
        poison = "ab" * (alpha == 0) + "c" * (beta == 0)
        yield Case(*shape, alpha=alpha, beta=beta, pad=draw.choice([0, 0, 1, 3, 4, 64]), shift=draw.choice([0, 0, 1]),
                   poison=poison, kernel=kernel, config=config)
    for beta, tiles in zip(SCALARS, ((1, 1, 1), (2, 1, 5), (3, 2, 2), (1, 2, 3)), strict=True):
        m, n, k = (count * size for count, size in zip(tiles, (config.bm, config.bn, config.bk), strict=True))
        for values, pad in (("normal", 0), ("normal", 4), ("integers", 8)):
            yield Case(m, n, k, beta=beta, pad=pad, values=values, kernel=kernel, config=config)


@pytest.mark.parametrize(("kernel", "config"), CONFIGS, ids=lambda x: x.label if isinstance(x, Kernel) else x.label())
def test_drawn_rungs(kernel: Kernel, config: Config) -> None:
    """By the guarded compilation, and the aligned one where the predicate allows it."""
    gpu = device.require()
    for case in drawn(kernel, config, 80):
        problem = Problem(case.m, case.n, case.k, case.k + case.pad, case.n + case.pad, case.n + case.pad,
                          alignment=(4 if case.shift else 16,) * 3)
        check(replace(case, arch=gpu.arch, config=validity.choose(kernel, config, gpu.limits, problem)))


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.label)
def test_past_two_to_the_31_elements(kernel: Kernel) -> None:
    """Rows far apart: the last element of each matrix lies past 2**31."""
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("needs 30 GB of free GPU memory")
    rows, ld = 130, 17_000_000
    flat = torch.empty(rows * ld, device="cuda")
    far, near = torch.as_strided(flat, (rows, 130), (ld, 1)), torch.randn(130, 130, device="cuda")
    far.copy_(torch.randn(rows, 130, device="cuda"))
    into = torch.as_strided(flat, (rows, 130), (ld, 1), 1000)
    for a, b, c in ((far, near, torch.full((rows, 130), NAN, device="cuda")),
                    (near, far, torch.full((rows, 130), NAN, device="cuda")), (near, near, into)):
        run_rung(kernel.number, a, b, c)
        assert torch.allclose(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)
    del flat, far, into, a, b, c
    torch.cuda.empty_cache()


# ---- large products ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k", "pad", "shift", "split"), [
    (400, 520, 77, 0, 0, 1), (1000, 700, 333, 3, 1, 0), (65, 1, 1030, 0, 2, 4), (3000, 2500, 129, 1, 0, 0),
    (193, 257, 9, 8, 3, 2), (4096, 4096, 512, 0, 0, 0), (4160, 4099, 300, 1, 0, 1)])
def test_wide_tiles_are_exact_for_integers(layout: str, m: int, n: int, k: int, pad: int, shift: int,
                                           split: int) -> None:
    check(Case(m, n, k, layout, 2.0, -1.0, pad, shift, values="integers", kernel=WIDE, sms=0,
               config=replace(WIDE.default, split=split)))


@pytest.mark.parametrize(("kernel", "m", "n", "k", "reproducible"), [
    ("wide", 6145, 6200, 520, False), ("chain", 5, 11008, 600, True), ("chain", 5000, 32, 64, True),
    ("specialised", 3000, 2900, 600, True)])
def test_chosen_captured_and_on_several_streams(kernel: str, m: int, n: int, k: int, reproducible: bool) -> None:
    """Other addresses, other tensor maps; both in turn, as a graph; products that share the SMs with others, so that
    none has all of its blocks there at once."""
    a, b = torch.randn((m, k), device="cuda"), torch.randn((k, n), device="cuda")
    plan = pg.plan(a, b, reproducible=reproducible)
    if plan.kernel != kernel:
        pytest.skip(f"{plan.kernel} here")
    want, outs = plan.execute(a, b), [torch.empty((m, n), device="cuda") for _ in range(2)]
    others = -a.clone(), b.clone()
    assert torch.equal(pg.matmul(*others, reproducible=reproducible), -want)
    space = torch.empty(plan.workspace_bytes // 4 + 1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):  # one launch beside the end of another
            plan.execute(a, b, out=outs[0], workspace=space)
            plan.execute(*others, out=outs[1], workspace=space)
    for _ in range(5):
        for out in outs:
            out.fill_(NAN)
        graph.replay()
        assert torch.equal(outs[0], want) and torch.equal(outs[1], -want)
    streams = [torch.cuda.Stream() for _ in range(3)]
    every = [[torch.empty_like(want) for _ in range(10)] for _ in streams]
    torch.cuda.synchronize()
    for number in range(10):
        for stream, each in zip(streams, every, strict=True):
            with torch.cuda.stream(stream):
                plan.execute(a, b, out=each[number])
    torch.cuda.synchronize()
    assert all(torch.equal(x, want) for each in every for x in each)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 4096), (3, 1000, 777), (16, 132 * 32 + 1, 515), (4096, 1, 4096),
                                           (2050, 7, 333), (2, 31, 1)])
def test_bits_of_thin_products(m: int, n: int, k: int, layout: str) -> None:
    """Of some rows and columns those of the replay; of a row those whatever stands beside it."""
    a, b = (torch.randn((columns, rows) if letter == "T" else (rows, columns), device="cuda")
            for letter, (rows, columns) in zip(layout, ((m, k), (k, n)), strict=True))
    a, b = a.mT if layout[0] == "T" else a, b.mT if layout[1] == "T" else b
    assert k == 1 or pg.plan(a, b, reproducible=True).kernel == "chain"  # by any kernel one product is itself
    got = pg.matmul(a, b, reproducible=True)
    rows, columns = torch.arange(m)[::max(m // 20, 1)], torch.arange(n)[::max(n // 20, 1)]
    want = pg.replay(a[rows].cpu().numpy(), b[:, columns].cpu().numpy())
    assert (got[rows][:, columns].cpu().numpy().view("u4") == want.view("u4")).all()
    for count in {1, m // 2, m} - {0}:
        assert torch.equal(pg.matmul(a[:count], b, reproducible=True), got[:count])


# ---- accumulators handed on ----------------------------------------------------------------------------------------


def handing() -> list[tuple[Kernel, Config]]:
    """The tiles that may hand on here, whole."""
    gpu = device.require()
    known = machine(gpu.arch, gpu.sm_count, gpu.name)
    return [(kernel, varied(tiling, chunked=False)) for kernel in (SPECIALISED, WIDE)
            for tiling in tilings(kernel, known) if may_hand_on(kernel, tiling)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("share", [1.05, 1.5, 2.9])
def test_bits_of_whole_tiles(layout: str, share: float) -> None:
    """Ragged edges, and tiles for so many of the blocks that run at once; with the flags of the launch before, too.

    Half of the wide products were wrong where warps began to take over while others still multiplied: the loads kept
    those of the others waiting until their stage had been overwritten.
    """
    gpu, (ta, tb) = device.require(), (letter == "T" for letter in layout)
    for kernel, config in handing():
        down = -(-int(gpu.sm_count * config.min_blocks * share) // 7)
        m, n, k = down * config.bm - 3, 7 * config.bn - 9, 1032 if kernel is WIDE else 517
        a, b = (torch.randn(shape[::-1] if turned else shape, device="cuda")
                for shape, turned in (((m, k), ta), ((k, n), tb)))
        c0 = torch.randn((m, n), device="cuda")
        problem = Problem(m, n, k, a.stride(0), b.stride(0), n, 1.5, -0.25, (16, 16, 16), ta, tb)
        if not validity.is_valid(kernel, config, gpu.limits, problem):
            continue
        want, space = c0.clone(), None
        launch(kernel, config, problem, a, b, want)
        for _ in range(12 if kernel is WIDE else 3):
            got = c0.clone()
            space = launch(kernel, handing_on(config), problem, a, b, got, space=space)
            assert torch.equal(got.view(torch.int32), want.view(torch.int32)), (kernel.name, config.label())
