"""Accumulators handed on, on the GPU: the bits of whole tiles, whatever the workspace held and whoever else runs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import peakgemm as pg  # noqa: E402
from peakgemm.kernels.bound import Bound, bind  # noqa: E402
from peakgemm.kernels.ffma.specialised import SPECIALISED  # noqa: E402
from peakgemm.kernels.ffma.tile_model import may_hand_on, tilings  # noqa: E402
from peakgemm.kernels.ffma.wide import WIDE  # noqa: E402
from peakgemm.kernels.registry import Kernel  # noqa: E402
from peakgemm.kernels.schedule import handing_on  # noqa: E402
from peakgemm.kernels.validity import is_valid  # noqa: E402
from peakgemm.problem import Batch, Config, Problem, varied  # noqa: E402
from peakgemm.runtime import device  # noqa: E402
from peakgemm.selection.machine import machine  # noqa: E402


def tiles() -> list[tuple[Kernel, Config]]:
    """Those that may hand on here, whole."""
    gpu = device.require()
    known = machine(gpu.arch, gpu.sm_count, gpu.name)
    return [(kernel, varied(config, chunked=False)) for kernel in (SPECIALISED, WIDE)
            for config in tilings(kernel, known) if may_hand_on(kernel, config)]


def bits(x: Any) -> Any:
    return x.view(torch.int32)


def launch(bound: Bound, a: Any, b: Any, c: Any, stream: Any = None, space: Any = None) -> Any:
    """Run, in a workspace full of what flags never are, or of what they are at the end."""
    if space is None:
        space = torch.full((bound.workspace_bytes // 4 + 1,), float("nan"), device="cuda")
    handle = (stream or torch.cuda.current_stream()).cuda_stream
    bound.launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), c.data_ptr(), space.data_ptr(), handle)
    return space


def whole_waves(config: Config, share: float) -> tuple[int, int]:
    """M and N of so many tiles an SM has blocks for, of ragged edges."""
    slots = device.require().sm_count * config.min_blocks
    across = 7
    down = -(-int(slots * share) // across)
    return down * config.bm - 3, across * config.bn - 9


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("share", [1.05, 1.5, 2.9])
def test_bits_of_whole_tiles(layout: str, share: float) -> None:
    gpu, (ta, tb) = device.require(), (letter == "T" for letter in layout)
    for kernel, config in tiles():
        m, n = whole_waves(config, share)
        k = 1032 if kernel is WIDE else 517
        a = torch.randn((k, m) if ta else (m, k), device="cuda")
        b = torch.randn((n, k) if tb else (k, n), device="cuda")
        c0 = torch.randn((m, n), device="cuda")
        problem = Problem(m, n, k, a.stride(0), b.stride(0), n, 1.5, -0.25, (16, 16, 16), ta, tb)
        if not is_valid(kernel, config, gpu.limits, problem):
            continue
        want, space = c0.clone(), None
        launch(bind(kernel, config, problem, gpu), a, b, want)
        for _ in range(3):  # the last two with the flags of the one before
            got = c0.clone()
            space = launch(bind(kernel, handing_on(config), problem, gpu), a, b, got, space=space)
            assert torch.equal(bits(got), bits(want)), (kernel.name, config.label())


@pytest.mark.parametrize("layout", ["NN", "TN"])
def test_a_slow_warps_last_stage_is_read(layout: str) -> None:
    """Half of these products were wrong where warps began to take over while others still multiplied: the loads kept
    those of the others waiting until their stage had been overwritten."""
    gpu, size = device.require(), 4096
    wide = next(((kernel, config) for kernel, config in tiles() if kernel is WIDE), None)
    if wide is None:
        pytest.skip("no wide tiles here")
    a, b = (torch.randn((size, size), device="cuda") for _ in range(2))
    problem = Problem(size, size, size, size, size, size, trans_a=layout[0] == "T")
    want, got = torch.empty((size, size), device="cuda"), torch.empty((size, size), device="cuda")
    launch(bind(*wide, problem, gpu), a, b, want)
    bound, space = bind(WIDE, handing_on(wide[1]), problem, gpu), None
    for _ in range(40):
        got.fill_(float("nan"))
        space = launch(bound, a, b, got, space=space)
        assert torch.equal(bits(got), bits(want))


def test_batches() -> None:
    gpu, (m, n, k, count) = device.require(), (200, 330, 129, 90)
    a, b = torch.randn((count, m, k), device="cuda"), torch.randn((count, k, n), device="cuda")
    problem = Problem(m, n, k, k, n, n, alignment=(4, 4, 4),
                      batch=Batch((count,), (m * k,), (k * n,), (m * n,), (m * n,)))
    for kernel, config in tiles():
        if kernel is WIDE:
            continue
        want, got = torch.empty((count, m, n), device="cuda"), torch.empty((count, m, n), device="cuda")
        launch(bind(kernel, config, problem, gpu), a, b, want)
        launch(bind(kernel, handing_on(config), problem, gpu), a, b, got)
        assert torch.equal(bits(got), bits(want)), config.label()


def test_nobody_waits_for_who_has_no_sm() -> None:
    """Two products at a time share the SMs, so that neither has all of its blocks there at once."""
    a, b = torch.randn((3000, 600), device="cuda"), torch.randn((600, 2900), device="cuda")
    plan = pg.plan(a, b, reproducible=True)
    assert plan.config.handed, plan.config.label()
    want = plan.execute(a, b)
    streams = [torch.cuda.Stream() for _ in range(3)]
    outs = [[torch.empty_like(want) for _ in range(40)] for _ in streams]
    torch.cuda.synchronize()
    for number in range(40):
        for stream, each in zip(streams, outs, strict=True):
            with torch.cuda.stream(stream):
                plan.execute(a, b, out=each[number])
    torch.cuda.synchronize()
    assert all(torch.equal(bits(x), bits(want)) for each in outs for x in each)


def test_captured() -> None:
    a, b = torch.randn((3000, 600), device="cuda"), torch.randn((600, 2900), device="cuda")
    out = torch.empty((3000, 2900), device="cuda")
    plan = pg.plan(a, b, reproducible=True)
    space = torch.empty(plan.workspace_bytes // 4, device="cuda")
    want = plan.execute(a, b)
    plan.execute(a, b, out=out, workspace=space)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.execute(a, b, out=out, workspace=space)
    for _ in range(5):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(bits(out), bits(want))
