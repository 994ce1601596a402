"""`peakgemm.linalg` of torch tensors by the way of a GPU's: CPU tensors stand for those of GPU 0, simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import linalg_case  # noqa: E402
from linalg_case import Case, definite, drawn, normal, triangular  # noqa: E402
from linalg_torch import stand_for_gpu  # noqa: E402
from peakgemm import linalg  # noqa: E402
from peakgemm.calls import eager  # noqa: E402
from peakgemm.errors import InvalidValue, OutOfMemory  # noqa: E402
from peakgemm.linalg import call  # noqa: E402


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_for_gpu(monkeypatch)


VIEWS = {
    "rows": lambda x: x, "columns": lambda x: x.mT.contiguous().mT,
    "a part": lambda x: torch.nn.functional.pad(x, (2, 3, 1, 1), value=float("nan"))[..., 1:-1, 2:-3],
    "lazily negated": lambda x: torch._neg_view(-x), "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "lazily conjugated": lambda x: x.conj().resolve_conj().conj(),
    "at an odd address": lambda x: torch.frombuffer(
        bytearray(b"  ") + x.numpy().tobytes(), dtype=x.dtype, offset=2).view(x.shape),
}


CASES = {f"{case.function} {case.operands[0].dtype} {len(case.operands)}": case for table in (
    linalg_case.products, linalg_case.complexes, linalg_case.triangles, linalg_case.definites, linalg_case.orthogonals)
    for case in table(9, 5, (2, 1), (3,))}


@pytest.mark.parametrize(("view", "case"), [(view, case) for case in CASES.values() for view in VIEWS
                                            if "conj" not in view or case.operands[0].dtype == np.complex64], ids=str)
def test_views(case: Case, view: str) -> None:
    case.check(case.run(lambda x: VIEWS[view](torch.from_numpy(x.copy()))).numpy())


@pytest.mark.parametrize("view", [name for name in VIEWS if "lazily" not in name])
def test_out(view: str) -> None:
    """Its other triangle stays, its version is counted; it is no view that is lazily negated."""
    a, old = (torch.from_numpy(x) for x in (normal(9, 5), normal(9, 9)))
    out = VIEWS[view](old.clone())
    version = out._version
    assert linalg.syrk(a, out, out=out, lower=False) is out and out._version > version
    torch.testing.assert_close(out, old.tril(-1) + (a @ a.mT + old).triu(), atol=1e-5, rtol=1e-5)
    s = VIEWS[view](torch.from_numpy(definite(2, 9, 9)))
    want = torch.linalg.cholesky(s.contiguous())
    factor, info = linalg.cholesky_ex(s, out=s)
    assert factor is s and info.tolist() == [0, 0]
    torch.testing.assert_close(s, want, atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidValue, match="read-only"):
        linalg.syrk(a, out=torch._neg_view(old))
    with pytest.raises(InvalidValue, match="its elements overlap"):
        linalg.cholesky(s, out=s[0].clone().expand(2, 9, 9))


@pytest.mark.parametrize("view", [name for name in VIEWS if "lazily" not in name])
def test_out_of_complex_numbers(view: str) -> None:
    a, old = (torch.from_numpy(drawn(*shape)) for shape in ((9, 5), (9, 9)))
    out = VIEWS[view](old.clone())
    version = out._version
    assert linalg.herk(a.conj(), old.conj(), out=out) is out and out._version > version and not out.is_conj()
    want = (a @ a.mH + old).conj()
    want.diagonal().imag[...] = 0
    torch.testing.assert_close(out, old.triu(1) + want.tril(), atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidValue, match="read-only"):
        linalg.herk(a, out=old.conj())
    with pytest.raises(InvalidValue, match=r"peakgemm\.linalg\.herk does not record"):
        linalg.herk(a.clone().requires_grad_())


def test_tensors_live_until_a_named_stream_has_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    monkeypatch.setattr(eager, "keep_for_stream", lambda *args: kept.append(args))
    t, b = (torch.from_numpy(x) for x in (triangular(9, 9), normal(9, 5)))
    x = linalg.trsm(t, b, stream=7)
    factor, info = linalg.cholesky_ex(torch.from_numpy(definite(9, 9)), stream=7)
    linalg.trsm(t, b, out=b, stream=7)
    assert all(result is mine for (_, result, _), mine in zip(kept, (x, factor, info, b), strict=True))
    assert [set(arrays) for arrays, _, _ in kept] == [{"a", "b"}, {"a"}, {"a"}, {"a", "b", "out"}] and kept[0][2] == 7


def test_no_room_for_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has its bytes, and what was asked for; nothing has been written."""
    def scratch(self: Any, size: int, like: Any, stream: int) -> Any:
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr("peakgemm.arrays.torch.Torch.scratch", scratch)
    s = torch.from_numpy(definite(2, 200, 200))
    before = s.clone()
    with pytest.raises(OutOfMemory, match=r"a workspace of 4[\d,]+ bytes for cholesky of a \(2, 200, 200\) does not fit"
                                          ".*solve smaller batches") as caught:
        linalg.cholesky_ex(s, out=s)
    assert isinstance(caught.value, torch.cuda.OutOfMemoryError) and torch.equal(s, before)
    assert np.isfinite(s.numpy()).all() and call.calls
