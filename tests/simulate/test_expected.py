"""What a run is told of: its result beside what it should be, its faults by their causes."""

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.tools.simulator import Fault, Report
from peakgemm.tools.simulator.expected import compare, reference


def test_a_product():
    a, b = (np.random.default_rng(0).standard_normal(shape).astype("f4") for shape in ((4, 6), (6, 8)))
    c, zeros = a @ b, np.zeros((4, 8), "f4")
    x, y, z = (one.T.ravel() for one in (a, b, c))
    assert compare(None, [a, b, zeros, 6], [a, b, c, 6])[0]
    assert compare(None, [x, y, zeros.ravel()], [x, y, z])[0]  # by columns
    wrong = c.copy()
    wrong[2, 3] += 1e-4
    right, said = compare(None, [a, b, zeros], [a, b, wrong])
    assert not right and said.startswith("Argument 2 is not as expected in 1 of 32 elements, the first at [2, 3]: ")
    with pytest.raises(InvalidValue, match=r"fits none of the arrays .* \(argument 1 of 32 elements\)"):
        compare(None, [a, zeros], [a, c])
    with pytest.raises(InvalidValue, match="fits several"):
        compare(None, [a, b, zeros, zeros], [a, b, c, c])


def test_a_file(tmp_path):
    found, zeros = np.arange(32, dtype="f4").reshape(4, 8), np.zeros((4, 8), "f4")
    np.save(tmp_path / "ref.npy", found.ravel())
    wanted = reference(str(tmp_path / "ref.npy"))
    assert compare(wanted, [zeros, 3], [found, 3]) == (True, "Argument 0 is as expected: the largest error is 0")
    assert compare(wanted, [zeros], [found + np.float32(0.003)])[0]
    found[0, 1] = np.nan
    assert compare(wanted, [zeros], [found])[1] == ("Argument 0 is not as expected in 1 of 32 elements, the first at "
                                                    "[0, 1]: nan instead of 1, 0.0031 being allowed")
    with pytest.raises(InvalidValue, match="fits none"):
        compare(wanted, [zeros], [zeros])


def test_what_is_expected():
    assert reference("matmul") is None
    for text, says in (("c.txt", "neither matmul nor a .npy file"), ("nowhere.npy", "cannot be read")):
        with pytest.raises(InvalidValue, match=says):
            reference(text)


def test_causes():
    def fault(kind, line, message=""):
        return Fault(kind, message, "k", "k.cu", line, 1, "st", [])

    faults = [fault("race", 3, "races with the read at k.cu:9 (PTX line 4)"), fault("race", 5, "the read at k.cu:8"),
              fault("race", 4, "races with the read at k.cu:9 (PTX line 4)"), fault("bounds", 3), fault("bounds", 3)]
    told = Report("k", faults, {}, []).causes()
    assert [one.count("more of this cause") for one in told] == [0, 1, 1]
    assert told[1].startswith("k.cu:3: race") and "in k.cu:3, k.cu:4, k.cu:9" in told[1] and "bounds" in told[2]
