"""What `make test-all` runs and `make test` leaves out."""

from typing import Any

import pytest


def exhaustive(*values: Any) -> Any:
    """One more set of arguments of a test, for `make test-all`: another has the kernel, and another the case."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)
