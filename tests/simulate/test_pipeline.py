"""A product by wgmma, tensor maps and mbarriers, with its mistakes; boxes of every shape."""

import re

import numpy as np
import pytest

from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.tools.simulator import TensorMap, run
from simulator_cases import FIXTURES, planted_line

RNG = np.random.default_rng(31)
ROOM = 2 * (128 + 64) * 64 * 2 + 128 * 64 * 4


def pipeline(m=256, n=128, k=256, grid=1, plant=0, **macros):
    """The report, the product, and what it should be."""
    a, b = RNG.standard_normal((m, k)).astype("f2"), RNG.standard_normal((n, k)).astype("f2")
    c = np.zeros((m, n), "f4")
    maps = [TensorMap(a, (64, 128), swizzle="128B"), TensorMap(b, (64, 64), swizzle="128B"), TensorMap(c, (32, 128))]
    report = run(FIXTURES / "pipeline.cu", grid=grid, block=384, arch="sm_90a", shared_bytes=ROOM,
                 args=[*maps, -(-m // 128), -(-n // 64), -(-k // 64)], macros={"PLANT": plant, **macros})
    return report, c, a.astype("f8") @ b.T.astype("f8")


@pytest.mark.parametrize(("m", "n", "k", "grid"), [(128, 64, 64, 1), (256, 128, 256, 2), (200, 104, 136, 1),
                                                   (8, 8, 8, 3), (384, 192, 328, 2)])
@pytest.mark.parametrize("late", [0, 1])
def test_a_pipeline(m, n, k, grid, late):
    report, c, want = pipeline(m, n, k, grid, LATE=late)
    assert report.clean, str(report)
    np.testing.assert_allclose(c, want, atol=1e-4)
    tiles, steps = -(-m // 128) * -(-n // 64), -(-k // 64)
    counters = report.counters
    assert counters["wgmma_instructions"] == 2 * 4 * tiles * steps
    assert counters["wgmma_flops"] == 2 * 128 * 64 * 64 * tiles * steps
    assert counters["bulk_copies"] == tiles * (2 * steps + 2)
    assert counters["bulk_bytes"] == tiles * (steps * (128 + 64) * 64 * 2 + 128 * 64 * 4)  # boxes count in full


PLANTS = {1: "cp_async_race", 2: "mbarrier", 3: "shared_race", 4: "wgmma_registers", 5: "deadlock", 6: "wgmma_fence",
          8: "cp_async_race", 9: "async_proxy", 10: "shared_race", 11: "shared_race", 12: "deadlock",
          13: "wgmma_fence", 14: "shared_race"}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
def test_mistakes(plant):
    report, _, _ = pipeline(plant=plant, LATE=int(plant == 14))
    lines = {fault.line for fault in report.faults if fault.kind == PLANTS[plant]}
    assert lines, str(report)
    if plant not in (5, 12):
        assert planted_line(plant, "pipeline.cu") in lines, str(report)
    else:
        assert report.stopped.startswith("deadlock")


def boxes(tensor, corners, way="load", rank=2, bytes_=None, **options):
    """Run the copies of ``boxes.cu``: ``(box bytes, corners)`` of what came, or for a store of what went."""
    size = tensor.bytes if bytes_ is None else bytes_
    corners = np.ascontiguousarray([[*c, *[0] * (5 - len(c))] for c in corners], "i4")
    data = options.pop("data", np.zeros((len(corners), tensor.bytes), "u1"))
    report = run(FIXTURES / "boxes.cu", entry=f"{way}{rank}", grid=len(corners), block=128, arch="sm_90a",
                 args=[tensor, corners, data, tensor.bytes, size, options.pop("offset", 0)], shared_bytes=40960,
                 macros=options.pop("macros", {}))
    return report, data


def plain(image, tensor):
    """Undo the swizzle of a box that began at a multiple of 1024."""
    at = np.arange(len(image))
    chunks = {"none": 1, "32B": 2, "64B": 4, "128B": 8}[tensor.swizzle]
    return image[at ^ at // 128 % chunks * 16]


def padded(x, corner, box, steps=None):
    """The box of ``x`` at ``corner`` (both innermost first), zero outside."""
    grid = np.meshgrid(*[c + np.arange(0, n, s) for c, n, s in
                         zip(corner[::-1], box[::-1], (steps or [1] * len(box))[::-1], strict=True)], indexing="ij")
    inside = np.all([(g >= 0) & (g < n) for g, n in zip(grid, x.shape, strict=True)], axis=0)
    there = tuple(np.clip(g, 0, n - 1) for g, n in zip(grid, x.shape, strict=True))
    return np.where(inside, x[there], 0).astype(x.dtype)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "u1"])
def test_boxes_and_their_edges(swizzle, dtype):
    x = RNG.integers(1, 100, (37, 208)).astype(dtype)
    row = {"none": 48, "32B": 32, "64B": 64, "128B": 128}[swizzle] // x.itemsize
    tensor = TensorMap(x, (row, 11), swizzle=swizzle)
    step = 16 // x.itemsize  # of the innermost coordinate
    corners = [(0, 0), (16, 5), (-step, -4), (192, 30), (-row, 0), (304, 50), (step, 36)]
    report, data = boxes(tensor, corners)
    assert report.clean, str(report)
    for corner, image in zip(corners, data, strict=True):
        assert (plain(image, tensor).view(dtype).reshape(11, row) == padded(x, corner, (row, 11))).all(), corner
    assert report.counters["bulk_bytes"] == len(corners) * tensor.bytes


@pytest.mark.parametrize("rank", [1, 3, 4, 5])
def test_every_rank(rank):
    shape = (2, 3, 4, 5, 24)[5 - rank:]
    x = RNG.standard_normal(shape).astype("f4")
    box = (8, 3, 2, 2, 2)[:rank]
    corners = [(0,) * rank, (-4, 1, 3, -1, 1)[:rank], (20, 4, -1, 2, 0)[:rank]]
    report, data = boxes(TensorMap(x, box), corners, rank=rank)
    assert report.clean, str(report)
    for corner, image in zip(corners, data, strict=True):
        assert (image.view("f4").reshape(box[::-1]) == padded(x, corner, box)).all()


def test_strides_of_elements_and_rows():
    x = RNG.standard_normal((20, 64)).astype("f4")
    tensor = TensorMap(x[:, :48], (8, 10), element_strides=(1, 3))
    report, data = boxes(tensor, [(4, 1), (44, -2)])
    assert report.clean and tensor.bytes == 4 * 8 * 4
    for corner, image in zip([(4, 1), (44, -2)], data, strict=True):
        assert (image.view("f4").reshape(4, 8) == padded(x[:, :48], corner, (8, 10), [1, 3])).all()
    other = TensorMap(x, (8, 4), dims=(16, 5), strides=(1024,), dtype="f32")
    report, data = boxes(other, [(0, 2)])
    assert (data[0].view("f4").reshape(4, 8) == padded(x[::4, :16], (0, 2), (8, 4))).all()


@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_stores_leave_alone_what_is_outside(swizzle):
    x = np.full((20, 40), -1, "f4")
    tensor = TensorMap(x, (32, 6), swizzle=swizzle)
    corners = [(0, 0), (32, 8), (-4, 16)]
    data = RNG.standard_normal((3, 6 * 32)).astype("f4")
    report, _ = boxes(tensor, corners, "store", data=data.view("u1"))
    assert report.clean, str(report)
    want = np.full((40, 100), -1, "f4")
    for (c, r), image in zip(corners, data, strict=True):
        box = plain(image.view("u1"), tensor).view("f4").reshape(6, 32)
        want[10 + r:16 + r, 30 + c:62 + c] = box
    assert (x == want[10:30, 30:70]).all()


@pytest.mark.parametrize(("options", "kind", "message"), [
    ({"offset": 64}, "misaligned", "box of 768 bytes at shared address 1088, not a multiple of 128"),
    ({"offset": 40960 - 512}, "shared_out_of_bounds", "past the block's 41984 bytes"),
    ({"macros": {"PLANT": 1}}, "tensor_map", "is no tensor map; pass a simulator.TensorMap"),
    ({"rank": 3}, "tensor_map", "3 coordinates for a tensor of 2 dimensions"),
])
def test_refused_boxes(options, kind, message):
    report, _ = boxes(TensorMap(np.zeros((20, 40), "f4"), (32, 6)), [(0, 0)], **options)
    fault = next(fault for fault in report.faults if fault.kind == kind)
    assert message in fault.message


@pytest.mark.parametrize("way", ["load", "store"])
def test_a_box_begins_at_sixteen_bytes(way):
    """As on an H100, where columns 0, 4, -4 and 96 of floats are copied; 1, 3, 7, -1 are an illegal instruction."""
    tensor = TensorMap(np.zeros((20, 40), "f4"), (32, 6))
    report, _ = boxes(tensor, [(4, 1), (-4, 9)], way)
    assert report.clean, str(report)
    report, _ = boxes(tensor, [(0, 1), (3, 9)], way)
    fault = next(fault for fault in report.faults if fault.kind == "misaligned")
    assert "box at the innermost coordinate 3, which is 12 bytes, no multiple of 16" in fault.message


def test_a_store_to_a_read_only_array():
    x = np.zeros((20, 40), "f4")
    x.flags.writeable = False
    report, _ = boxes(TensorMap(x, (32, 6)), [(0, 0)], "store", data=np.ones((1, 768), "u1"))
    assert [fault.kind for fault in report.faults] == ["read_only"]


@pytest.mark.parametrize("plant", [0, 2])
def test_rows_stored_without_a_map(plant):
    x, out = RNG.standard_normal((6, 16)).astype("f4"), np.zeros((6, 16), "f4")
    report = run(FIXTURES / "boxes.cu", entry="rows", grid=3, block=32, arch="sm_90a", args=[x, out],
                 macros={"PLANT": plant})
    if plant:
        assert [(f.kind, f.line) for f in report.faults] == [("shared_race", planted_line(2, "boxes.cu"))]
        assert "cp.async.bulk.wait_group.read" in report.faults[0].message
    else:
        assert report.clean and (out == x).all(), str(report)
        assert (report.counters["bulk_copies"], report.counters["bulk_bytes"]) == (6, 6 * 64)


@pytest.mark.parametrize(("change", "kind", "message"), [
    ("offset", "misaligned", "bulk copy of 64 bytes to an address that is not a multiple of 16"),
    ("small", "out_of_bounds", "argument 1 .* at byte 64"), ("frozen", "read_only", "to a read-only array: argument 1"),
])
def test_rows_that_cannot_be_stored(change, kind, message):
    x, out = np.zeros((2, 16), "f4"), np.zeros(33, "f4")
    out = {"offset": out[1:], "small": out[:16].copy(), "frozen": out[:32].copy()}[change]
    out.flags.writeable = change != "frozen"
    report = run(FIXTURES / "boxes.cu", entry="rows", grid=1, block=32, arch="sm_90a", args=[x, out])
    fault = next(fault for fault in report.faults if fault.kind == kind)
    assert re.search(message, fault.message), fault.message


X = np.zeros((20, 40), "f4")


@pytest.mark.parametrize(("args", "options", "message"), [
    ((X, (32,)), {}, "give 1 to 5 dims"), ((X, (6, 2)), {}, "24 bytes, no multiple of 16"),
    ((X, (512, 2)), {}, "512 must be from 1 to 256"), ((X[:, :37].copy(), (4, 4)), {}, "multiple of 16; pad the rows"),
    ((X, (32, 4)), {"swizzle": "64B"}, r"pass box\[0\] = 16"), ((X, (32, 4)), {"swizzle": "128"}, "none of none, 32B"),
    ((X, (32, 4)), {"dims": (40, 21)}, "3360 bytes, its array has 3200"),
    ((X, (32, 4)), {"element_strides": (1, 9)}, "9 must be from 1 to 8"),
    ((X, (32, 4)), {"dtype": "bf16"}, "pass dims"),
    ((X, (32, 4)), {"dims": (40, 20), "strides": (8,)}, "8 must be from 16"),
])
def test_maps_that_cannot_be(args, options, message):
    with pytest.raises(InvalidValue, match=message):
        TensorMap(*args, **options)


def test_a_map_needs_an_array_a_type_and_a_place():
    with pytest.raises(InvalidType, match="is a list"):
        TensorMap([1], (4,))
    with pytest.raises(InvalidType, match="dtype complex64"):
        TensorMap(np.zeros(8, "c8"), (4,))
    with pytest.raises(InvalidValue, match="4 bytes past a multiple of 16"):
        boxes(TensorMap(np.zeros(801, "f4")[1:].reshape(20, 40), (32, 6)), [(0, 0)])
    with pytest.raises(InvalidType, match="takes 8 bytes, a TensorMap 128"):
        run(FIXTURES / "boxes.cu", entry="load2", grid=1, block=128, arch="sm_90a",
            args=[TensorMap(X, (32, 6)), TensorMap(X, (32, 6)), X, 1, 1, 1])
