"""A share of the products under `peakgemm.torch.use` checked, on the CPU's key: NumPy multiplies, sometimes wrongly."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import peakgemm as pg  # noqa: E402
from peakgemm.errors import InvalidValue, WrongProduct  # noqa: E402
from peakgemm.integrations.recorder import Recorder  # noqa: E402
from peakgemm.integrations.torch_use import Use, _run  # noqa: E402


def wrong(call, precision):
    """A product with a bit flipped in its last row."""
    result = _run(call, precision)
    result[..., -1, 0].view(torch.int32).bitwise_xor_(1 << 29)
    return result


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_right_products_of_all_ops_in_place_too():
    a, b, c = draw(3, 20, 6), draw(3, 6, 9), draw(3, 20, 9)
    with Use("ieee", "CPU", certify=1) as ran:
        a[0] @ b[0], a @ b, torch.baddbmm(c[:, :1], a, b, beta=0.5), torch.addmm(c[0, 0], a[0], b[0])
        c.clone().baddbmm_(a, b, beta=-2), torch.addmm(c[0], a[0], b[0], out=c[1])
        torch.nn.Linear(6, 9)(a).sum().backward()
        torch.full_like(c, float("nan")).baddbmm_(a, b, beta=0)
        (a[0] + 0j) @ (b[0] + 0j)
    assert not ran.faults and ran.checked == sum(ran.calls.values()) - 1  # complex products are not checked
    assert "were checked, 0 are wrong" in str(ran)


def test_a_share():
    a, b = draw(4, 5), draw(5, 6)
    with Use("ieee", "CPU", certify=0.2) as ran:
        for _ in range(500):
            a @ b
    assert 50 < ran.checked < 160
    with Use("ieee", "CPU") as ran:
        a @ b
    assert ran.checked == 0


def test_what_is_done_about_a_wrong_product(caplog):
    model, x = torch.nn.Linear(12, 7, bias=False), draw(30, 12)
    with Use("ieee", "CPU", wrong, certify=1) as ran, pytest.warns(RuntimeWarning, match="wrong product, ") as warned:
        model(x)
    said = str(warned[0].message)
    assert "test_torch_certify.py:" in said and "in Linear(in_features=12" in said and "1 row, [29]" in said
    assert ran.faults == [said]
    deeper = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Tanh(), model))
    with Use("ieee", "CPU", wrong, certify=1, on_fault="log") as ran:
        deeper(x)
    assert "bias=False), 0.1 of Sequential: " in ran.faults[0]
    recorder = Recorder()
    with Use("ieee", "CPU", wrong, certify=1, on_fault="log", recorder=recorder):
        model(x)
    assert "certified 1 products; 1 are wrong" in str(recorder) and said.partition(":")[0] in str(recorder)
    caplog.clear()
    with Use("ieee", "CPU", wrong, certify=1, on_fault="raise"), pytest.raises(WrongProduct, match="1 column, "):
        model(x)
    x.requires_grad_()
    y = model(x).sum()
    with caplog.at_level(logging.ERROR, "peakgemm"), Use("ieee", "CPU", wrong, certify=1, on_fault="log") as ran:
        y.backward()
    assert len(ran.faults) == ran.calls["mm"] == len(caplog.records) > 0


def test_refusals():
    for options, message in (({"certify": 1.5}, "no share"), ({"certify": -1}, "no share"),
                             ({"on_fault": "ignore"}, "'warn', 'log', 'raise'")):
        with pytest.raises(InvalidValue, match=message):
            pg.torch.use(**options)


def test_within_compiled_code():
    a, b = draw(20, 6), draw(6, 9)
    product, certificate = torch.compile(lambda a, b: pg.matmul(a, b + 1, certify=True), backend="eager")(a, b)
    assert certificate.ok and torch.allclose(product, a @ (b + 1), atol=1e-4)


def test_tensors_of_any_kind():
    """With gradients, strided, negated lazily; the certificate has none."""
    a, b = draw(20, 6).requires_grad_(), draw(9, 6).mT
    product, certificate = pg.matmul(a, b, certify=True)
    assert certificate.ok and product.requires_grad
    product = product.detach()
    assert pg.certify(torch._neg_view(a.detach()), b, -product).ok
    assert pg.certify(a, b, product + torch.arange(9.0), c0=torch.arange(9.0)).ok
    product[3, 4] += 1
    assert pg.certify(a, b, product).rows.tolist() == [3]
