"""Drawn products on NumPy arrays through the public call."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import api_cases


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_products(data: st.DataObject) -> None:
    api_cases.check_call(lambda options: data.draw(st.sampled_from(options)))
