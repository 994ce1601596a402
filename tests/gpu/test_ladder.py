"""Every rung on the GPU: awkward sizes, alpha, beta, leading dimensions, NaN and guard words."""

import random

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch as reference")

from guarded import check  # noqa: E402
from peakgemm.calls.rung import run_rung  # noqa: E402
from peakgemm.kernels import validity  # noqa: E402
from peakgemm.kernels.registry import LADDER, rung  # noqa: E402
from peakgemm.kernels.rung import RungConfig  # noqa: E402
from peakgemm.runtime import device  # noqa: E402

SIZES = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1023]
SCALARS = [0.0, 1.0, -0.5, 2.0]
DRAWS = 220


def configs(kernel):
    gpu = device.find()
    default = kernel.config_for(gpu.arch) if gpu else kernel.default
    return {"default": default, **kernel.named}


def runs_here(kernel):
    gpu = device.find()
    return gpu is None or kernel.lacks(gpu.limits) is None


KERNELS = [k for k in LADDER if runs_here(k)]
CASES = [(k, name) for k in KERNELS for name in (configs(k) if k.named else {"default": None})]


def problems(count, seed):
    """Each edge size in each place at least once, then mixed draws."""
    draw = random.Random(seed)
    shapes = [tuple(size if i == place else draw.choice(SIZES) for i in range(3))
              for size in SIZES for place in range(3)]
    shapes += [tuple(draw.choice(SIZES) for _ in range(3)) for _ in range(count - len(shapes))]
    for shape in shapes:
        pads = tuple(draw.choice([0, 0, 1, 3, 4, 64]) for _ in range(3))
        yield shape, draw.choice(SCALARS), draw.choice(SCALARS), pads, draw.choice([0, 0, 1, 2])


@pytest.mark.parametrize(("kernel", "name"), CASES, ids=lambda x: getattr(x, "label", x))
def test_drawn_problems(kernel, name):
    for shape, alpha, beta, pads, offset in problems(DRAWS, seed=kernel.number):
        check(kernel, shape, alpha, beta, pads, offset, config=configs(kernel)[name])


@pytest.mark.parametrize(("kernel", "name"), CASES, ids=lambda x: getattr(x, "label", x))
@pytest.mark.parametrize("beta", SCALARS)
def test_aligned_path(kernel, name, beta):
    config = configs(kernel)[name]
    for tiles in ((1, 1, 1), (2, 1, 5), (3, 2, 2)):
        shape = (tiles[0] * config.bm, tiles[1] * config.bn, tiles[2] * config.bk)
        for alpha in SCALARS:
            check(kernel, shape, alpha, beta, (0, 0, 0), 0, config=config)
            check(kernel, shape, alpha, beta, (4, 8, 12), 0, config=config)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.tensor_copies], ids=lambda k: k.label)
def test_boxes_past_the_edges(kernel):
    """Sizes that are no multiples of the tile, pitches that a tensor map can have."""
    for m, n, k in ((1, 1, 1), (127, 255, 15), (129, 257, 17), (300, 1, 95), (1000, 1023, 1001), (2, 515, 4096)):
        for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
            check(kernel, (m, n, k), alpha, beta, (-k % 4 + 4, -n % 4 + 8, 3))


@pytest.mark.parametrize(("kernel", "name"), CASES, ids=lambda x: getattr(x, "label", x))
def test_integers_come_out_exactly(kernel, name):
    for shape in ((129, 65, 257), (256, 256, 256), (1, 1000, 33)):
        check(kernel, shape, 1.0, 1.0, integers=True, config=configs(kernel)[name])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.label)
def test_past_two_to_the_31_elements(kernel):
    """Rows far apart: the last element of each matrix lies past 2**31."""
    free, _ = torch.cuda.mem_get_info()
    if free < 30e9:
        pytest.skip("needs 30 GB of free GPU memory")
    rows, ld = 130, 17_000_000
    flat = torch.empty(rows * ld, device="cuda", dtype=torch.float32)
    view = torch.as_strided(flat, (rows, 130), (ld, 1))
    view.copy_(torch.randn(rows, 130, device="cuda"))
    other = torch.randn(130, 130, device="cuda")
    out = torch.full((rows, 130), float("nan"), device="cuda")
    run_rung(kernel.number, view, other, out)
    assert torch.allclose(out.double(), view.double() @ other.double(), rtol=1e-5, atol=1e-4)
    run_rung(kernel.number, other, view, out)
    assert torch.allclose(out.double(), other.double() @ view.double(), rtol=1e-5, atol=1e-4)
    into = torch.as_strided(flat, (rows, 130), (ld, 1), 1000)
    run_rung(kernel.number, other, other, into)
    assert torch.allclose(into.double(), other.double() @ other.double(), rtol=1e-5, atol=1e-4)
    del flat, view, into
    torch.cuda.empty_cache()


@pytest.mark.parametrize("tile", [
    (11, (64, 64, 4, 8, 8, 2, 2)), (11, (32, 64, 16, 4, 8, 1, 1)), (11, (128, 64, 8, 16, 8, 2, 2)),
    (11, (64, 128, 32, 4, 4, 2, 2)), (11, (96, 64, 8, 12, 8, 2, 2)), (12, (64, 64, 16, 8, 4, 2, 2)),
    (12, (96, 64, 16, 12, 8, 2, 2)), (13, (64, 64, 8, 8, 8, 4, 2)), (13, (128, 64, 32, 8, 8, 2, 2)),
    (14, (256, 64, 8, 16, 8, 5, 2)), (14, (128, 128, 8, 4, 16, 2, 2)),
], ids=str)
def test_other_tiles(tile):
    number, (bm, bn, bk, tm, tn, stages, fragments) = tile
    kernel = rung(number)
    config = RungConfig(bm, bn, bk, tm, tn, stages=stages, fragments=fragments)
    assert not validity.violations(kernel, config, device.require().limits)
    for shape, alpha, beta, pads, offset in problems(60, seed=bm * bn + bk):
        check(kernel, shape, alpha, beta, pads, offset, config=config)
    check(kernel, (2 * bm, 3 * bn, 5 * bk), 2.0, -0.5, config=config)
