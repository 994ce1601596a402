"""torch's linear algebra under `use(linalg=True)` without a GPU: on the CPU's key."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.register_assert_rewrite("torch_cases", "torch_linalg_cases")

from peakgemm import linalg  # noqa: E402
from peakgemm.integrations.linalg_sizes import Sizes  # noqa: E402
from torch_linalg_cases import LinalgUseCases  # noqa: E402


class TestLinalgUse(LinalgUseCases):
    device = "cpu"


@pytest.mark.parametrize(("count", "rows", "columns", "holds"), [
    (1, 512, 256, True), (1, 512, 255, False), (1, 511, 256, False), (1, 8192, 64, False), (64, 64, 64, True),
    (63, 64, 64, False), (64, 64, 63, False), (2, 512, 256, True)])
def test_from_which_sizes_on(count, rows, columns, holds):
    sizes = Sizes(rows=512, columns=256, batch_rows=64, batch_columns=64, batch_total=4096)
    assert sizes.hold(count, rows, columns) == holds


def test_complex_results_without_elements():
    for shape in ((0, 2), (0, 2, 3)):
        x = torch.zeros(shape, dtype=torch.complex64)
        for function in (linalg.gram, linalg.herk, linalg.syrk):
            assert function(x).shape == (*shape[:-1], shape[-2]) and function(x).dtype == x.dtype
