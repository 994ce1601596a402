"""Every family of FFMAs on the simulator, by a row of a table: layouts, addresses, edges, scales, batches, code.

What a family alone promises is in a file of its own, test_NAME.py.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from library_case import LAYOUTS, Case, multiply
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.library import KERNELS, compile_for
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.validity import violations
from peakgemm.problem import Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.selection.machine import machine
from sass_cases import ARCHITECTURES

pytestmark = pytest.mark.usefixtures("many_lanes")

SMS = 4
# A family, and M, N and K that it is for, with tiles past every edge.
Row = tuple[Kernel, tuple[int, int, int]]
ROWS: tuple[Row, ...] = (
    (SPECIALISED, (45, 39, 21)), (SKINNY, (37, 7, 45)), (SKINNY, (7, 37, 45)), (SMALL, (13, 11, 9)),
    (CHAIN, (37, 7, 45)), (CHAIN, (7, 37, 45)))
# Whose tests take tiles that no model proposes for a product that is quick to simulate.
ELSEWHERE = {"wide": "test_library_simulated.py", "staged": "test_reproducible.py"}
# Bytes a thread, at most, where they are more than some tens: of X by words, four rows a thread and eight columns.
SPILLS = {("skinny", "sm_100"): 600, ("skinny", "sm_120"): 600}
FAMILIES = pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, (row[0].name, *row[1]))))


def proposed(kernel: Kernel, problem: Problem, arch: str = "sm_90", sms: int = SMS) -> list[Config]:
    """The configurations that a family's models name for a problem, the fastest first."""
    gpu, family = machine(arch, sms), kernel.family
    if not kernel.is_for(gpu.arch):
        return []
    ranked = [*family.candidates(kernel, problem, gpu, ""), *family.chains(kernel, problem, gpu)]
    return list(dict.fromkeys(config for config, _ in sorted(ranked, key=lambda each: each[1])))


def case(row: Row, **changes: Any) -> Case:
    """A product of the family's sizes, or of others, by the configuration that its model ranks first."""
    kernel, of = row
    sizes: dict[str, Any] = {**dict(zip("mnk", of, strict=True)), **changes}
    config = proposed(kernel, Problem.contiguous(*(max(sizes[name], 1) for name in "mnk")))[0]
    return Case(**{"config": config, "kernel": kernel, "sms": SMS, **sizes})


def test_every_family_has_a_row() -> None:
    assert {kernel.name for kernel in KERNELS} == {kernel.name for kernel, _ in ROWS} | set(ELSEWHERE), (
        "add the family, with M, N and K that it is for, to ROWS")


@FAMILIES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_edges_in_any_layout(row: Row, layout: str) -> None:
    """By words; by sixteen bytes, where rows and columns are multiples of four; with and without C0."""
    multiply(case(row, layout=layout, pad=3, shift=1))
    m, n, k = (-(-size // 4) * 4 for size in row[1])
    multiply(case(row, m=m, n=n, k=k, layout=layout, pad=4, integers=True))
    multiply(case(row, m=m, n=n, k=k, layout=layout, beta=0.0))


@FAMILIES
@pytest.mark.parametrize(("k", "alpha", "beta", "poison"), [
    (1, 1.5, 0.5, ""), (1, 1.0, 0.0, "c"), (0, 1.5, 0.5, ""), (0, 1.5, 0.0, "c"), (None, 0.0, 0.5, "ab"),
    (None, 0.0, 0.0, "abc"), (None, -2.0, 0.0, "c"), (None, 1.0, 1.0, "")])
def test_scales(row: Row, k: int | None, alpha: float, beta: float, poison: str) -> None:
    """With alpha = 0 or K = 0, A and B are not read; with beta = 0, C0 is not."""
    multiply(case(row, k=row[1][2] if k is None else k, alpha=alpha, beta=beta, poison=poison))


@FAMILIES
@pytest.mark.parametrize("c0", ["mn", "n", "m", ""])
def test_a_matrix_row_column_or_number_is_added(row: Row, c0: str) -> None:
    multiply(case(row, c0=c0, pad=1, beta=-0.75))
    multiply(case(row, c0=c0, beta=0.0, poison="c"))


@FAMILIES
def test_batches(row: Row) -> None:
    """More tiles than blocks that run at once; operands that stay where they are."""
    multiply(case(row, m=7, n=6, batch=(2, 3, 3), sms=1))
    multiply(case(row, m=8, n=8, batch=(3, 5), still={"b": (0,), "a": (1,)}))
    multiply(case(row, m=8, n=7, c0="n", batch=(3,), still={"c0": (0,)}))


@FAMILIES
def test_many_tiles_of_one_matrix(row: Row) -> None:
    m, n, k = row[1]
    multiply(case(row, m=9 * m if m >= n else m, n=n if m >= n else 9 * n, k=k, sms=1))


@FAMILIES
@pytest.mark.parametrize("sizes", [(0, 5, 3), (5, 0, 3)])
def test_nothing_to_do(row: Row, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    multiply(case(row, m=m, n=n, k=k))


@FAMILIES
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_is_proposed_is_valid_and_hardly_spills(row: Row, arch: str) -> None:
    """The model's first for the family's sizes, and for a product that is large."""
    kernel, (m, n, k) = row
    limits = architecture(arch)
    for scale, aligned in product((1, 100), (False, True)):
        rows, columns = scale * m, n if min(m, n) < 10 else scale * n
        lds = (k, columns, columns) if not aligned else tuple(-(-size // 4) * 4 for size in (k, columns, columns))
        problem = Problem(rows, columns, k, *lds)
        for config in proposed(kernel, problem, arch, limits.gpu_sms)[:1]:
            assert not violations(kernel, config, limits, problem)
            spilled = compile_for(kernel, config, problem, arch).spill_bytes
            assert spilled <= SPILLS.get((kernel.name, arch), 48), config.label()
