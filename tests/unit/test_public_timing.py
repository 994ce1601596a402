"""What `lab.public_timing` makes of times and results; the card's part is the GPU's."""

import struct

import numpy as np
import pytest

from lab import public_timing


def test_summary():
    rows = [{"predicted": predicted, "tflops": measured, "error": error} for predicted, measured, error in
            ((10.0, 8.0, 0.1), (30.0, 40.0, 0.2), (20.0, 20.0, 0.5), (1.0, 100.0, 7.0))]
    found = public_timing.summary([*rows, {"failed": "no memory"}, {"refused": "no launch"}])
    assert found == pytest.approx({"timed": 3, "median_error": 0.25, "largest_error": 0.25, "rank_correlation": 1.0})
    assert public_timing.summary(rows[:1]) == {"timed": 1}


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_result_is_checked(by_columns):
    a, b = np.random.default_rng(0).standard_normal((2, 64 * 64)).astype("f4")
    first, second = (one.reshape(64, 64, order="F" if by_columns else "C") for one in (a, b))
    c = (first @ second).ravel(order="F" if by_columns else "C")
    assert public_timing._error(a, b, c, 64, by_columns) < 1 < public_timing._error(a, b, c, 64, not by_columns)
    c[7] = np.nan
    assert public_timing._error(a, b, c, 64, by_columns) == np.inf


def test_arguments():
    addresses = {"A": 1 << 40}
    assert [public_timing._argument(word, 2048, addresses).raw[:8] for word in ("A", "M", "alpha", "beta")] == [
        struct.pack("<Q", 1 << 40), struct.pack("<q", 2048), struct.pack("<f4x", 1), bytes(8)]


def test_a_kernel_that_fails_ends_nothing(tmp_path, monkeypatch):
    """Without a GPU each process fails, with its last line for a reason; a job that could not be prepared keeps its."""
    monkeypatch.setattr(public_timing, "SIZES", (8,))
    (tmp_path / "jobs.json").write_text('[{"name": "one", "sizes": {}}, {"name": "two", "refused": "no launch"}]')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = public_timing.all_timed([{"name": "one", "sizes": {}}, {"name": "two", "refused": "no launch"}], tmp_path)
    assert [sorted(row) for row in rows] == [["failed", "name"], ["name", "refused"]] and rows[0]["failed"]
