"""Shared by all tests: the gpu marker and its skip."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))


def pytest_collection_modifyitems(items):
    from peakgemm.runtime.device import reason_without_gpu

    reason = None
    for item in items:
        if "/gpu/" in str(item.path).replace(os.sep, "/"):
            item.add_marker(pytest.mark.gpu)
            reason = reason or reason_without_gpu()
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
