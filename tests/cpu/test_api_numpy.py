"""Drawn products on NumPy arrays through the public call."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import api_cases
import peakgemm as pg


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_products(data: st.DataObject) -> None:
    case = api_cases.draw(lambda options: data.draw(st.sampled_from(options)), layouts=(*api_cases.LAYOUTS, "flipped"))
    arrays = api_cases.make(case)
    if 1 in (len(case.a), len(case.b)):
        got = pg.matmul(arrays.a, arrays.b, out=arrays.out)
    else:
        got = pg.gemm(arrays.a, arrays.b, arrays.c, alpha=case.alpha, beta=case.beta, trans_a=case.trans_a,
                      trans_b=case.trans_b, out=arrays.out)
    assert arrays.out is None or got is arrays.out
    arrays.check(got)
