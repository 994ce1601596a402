"""Every family of kernels, and every rung of the ladder, on the simulator, by the tables of family_cases.py.

What a family alone promises is in files of its own: test_guards.py, test_sums.py, test_handed.py.
"""

from __future__ import annotations

from itertools import product

import pytest

import family_cases
from family_cases import ROWS, Row, proposed
from library_case import Case, multiply
from peakgemm.errors import InvalidValue
from peakgemm.kernels.emulated.product import PRODUCTS
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED
from peakgemm.kernels.ffma.staged import STAGED
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import EMULATED, KERNELS, compile_for
from peakgemm.kernels.validity import violations
from peakgemm.problem import Problem
from peakgemm.runtime.architectures import architecture
from sass_cases import ARCHITECTURES
from seldom import exhaustive

# Bytes a thread, at most, where they are more than some tens: of X by words, four rows a thread and eight columns.
SPILLS = {("skinny", "sm_100"): 600, ("skinny", "sm_120"): 600}


@pytest.mark.usefixtures("many_lanes")
@pytest.mark.parametrize("case", family_cases.products())
def test_products(case: Case) -> None:
    entries, config = [report.kernel for report in multiply(case)[1]], case.config
    if config is not None and case.kernel.family.tiled and config.cluster > 1:
        assert len(entries) == 1, "a second kernel adds up what a cluster adds up itself"
    if config is not None and config.handed:
        assert entries == ["ffma_first_chunk", case.kernel.entry], "flags are cleared before, and nothing is added up"


def test_the_simulator_refuses_what_a_launch_refuses() -> None:
    with pytest.raises(InvalidValue, match="alpha = 0"):  # C would be left as it is
        multiply(Case(8, 8, 8, alpha=0.0, kernel=WIDE, config=WIDE.default))


def test_every_family_has_a_row() -> None:
    """Whose tiles no model proposes for small products have tables of their own; of mma.sync, in test_tensor_mma.py."""
    others = {WIDE, STAGED, *PRODUCTS.values(), STREAMED, FUSED}
    assert {kernel for kernel in (*KERNELS, *EMULATED) if kernel.outdone_by != "wgmma"} == others | {k for k, _ in ROWS}


@pytest.mark.parametrize(("row", "arch"), [
    (row, arch) if arch in ("sm_80", "sm_90") else exhaustive(row, arch) for row in ROWS for arch in ARCHITECTURES],
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, (x[0].name, *x[1]))))
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
