"""Shared by all tests: the gpu marker and its skip."""

import gc
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
gc.set_threshold(50_000, 20, 20)  # of the simulator's programs there are millions of objects, which the tests keep


def pytest_collection_modifyitems(items):
    from peakgemm.runtime.device import reason_without_gpu

    reason = None
    for item in items:
        if "/gpu/" in str(item.path).replace(os.sep, "/"):
            item.add_marker(pytest.mark.gpu)
            reason = reason or reason_without_gpu()
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
