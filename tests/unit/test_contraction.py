"""`einsum`, `tensordot`, `dot`, `vecdot` and `multi_dot` beside NumPy's, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy._core.tests import test_einsum as numpys
from opt_einsum.testing import build_views, rand_equation
from opt_einsum.tests.test_contract import tests as OPT_EINSUMS

import peakgemm as pg
from peakgemm import contraction
from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.runtime import device

EINSUM = np.einsum


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find", lambda: None)
    contraction._known.clear()


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(got: Any, want: Any, scale: Any) -> None:
    assert got.shape == np.shape(want) and np.all(abs(got - want) <= 1e-5 * scale + 1e-30)


def compare(subscripts: Any, *operands: Any, **options: Any) -> None:
    """``einsum`` of the operands as float32, beside NumPy's in float64."""
    narrow = [x.astype(np.complex64 if np.iscomplexobj(x) else np.float32) if isinstance(x, np.ndarray) else x
              for x in operands]
    wide = [x.astype(np.complex128) if isinstance(x, np.ndarray) else x for x in narrow]
    sizes = [abs(x) if isinstance(x, np.ndarray) else x for x in wide]
    want, scale = EINSUM(subscripts, *wide), EINSUM(subscripts, *sizes)
    check(pg.einsum(subscripts, *narrow, **options), want, scale)
    again, factor = [np.asarray(2 * x) if isinstance(x, np.ndarray) else x for x in narrow], 2.0**len(
        [x for x in narrow if isinstance(x, np.ndarray)])
    check(pg.einsum(subscripts, *again, **options), factor * want, factor * scale)  # by the steps that were kept


@pytest.mark.parametrize("equation", OPT_EINSUMS)
def test_opt_einsums_expressions(equation: str) -> None:
    views = [np.asarray(x) for x in build_views(equation)]
    compare(equation, *views)
    compare(equation, *views, optimize="greedy")


@pytest.mark.parametrize("number", range(40))
def test_random_equations(number: int) -> None:
    equation, shapes = rand_equation(2 + number % 5, 3, number % 3, d_min=1, d_max=4, seed=number)
    compare(equation, *(normal(*shape, seed=number + i) for i, shape in enumerate(shapes)))


NUMPYS = [(kind, name) for kind in (numpys.TestEinsum, numpys.TestEinsumPath) for name in dir(kind)
          if name.startswith("test_") and "sums_" not in name and "object" not in name
          and not hasattr(getattr(kind, name), "pytestmark")]


@pytest.mark.parametrize(("kind", "name"), NUMPYS, ids=[name for _, name in NUMPYS])
def test_numpys_own_tests(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that they make is made of ours, too."""
    def both(subscripts: Any, *operands: Any, **options: Any) -> Any:
        result = EINSUM(subscripts, *operands, **options)
        if isinstance(subscripts, str):
            arrays = [np.asarray(x) for x in operands]
            if all(x.dtype.kind in "fc" and x.dtype.itemsize > 2 for x in arrays) and len(
                    {np.iscomplexobj(x) for x in arrays}) == 1 and set(options) <= {"optimize"}:
                compare(subscripts, *arrays)
        return result

    monkeypatch.setattr(np, "einsum", both)
    getattr(kind(), name)()


def test_numpys_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    test_numpys_own_tests(numpys.TestEinsum, "test_einsum_sums_float32", monkeypatch)
    test_numpys_own_tests(numpys.TestEinsum, "test_einsum_sums_cfloat64", monkeypatch)


@st.composite
def contractions(draw: Any) -> tuple[str, list[Any]]:
    """Labels with sizes, of which 1 and 0 are some, operands with any strides, and a result in any order."""
    sizes = {label: draw(st.sampled_from((0, 1, 2, 3, 5))) for label in "abcdef"}
    terms = ["".join(draw(st.lists(st.sampled_from("abcdef"), max_size=4))) for _ in range(draw(st.integers(1, 3)))]
    labels = sorted({*"".join(terms)})
    output = "".join(draw(st.permutations(draw(st.lists(st.sampled_from(labels), unique=True)) if labels else [])))
    operands = []
    for i, term in enumerate(terms):
        alone = {x for x in term if term.count(x) == 1}
        shape = [1 if x in alone and draw(st.integers(0, 5)) == 0 else sizes[x] for x in term]
        order = draw(st.permutations(range(len(term))))
        x = normal(*(shape[j] for j in order), seed=i).transpose(np.argsort(order))
        operands.append(x[(..., *(slice(None, None, draw(st.sampled_from((1, 1, -1)))) for _ in term))])
    return f"{','.join(terms)}->{output}", operands


@settings(max_examples=100, deadline=None)
@given(contractions(), st.booleans())
def test_any_contraction(case: tuple[str, list[Any]], is_complex: bool) -> None:
    equation, operands = case
    if is_complex:
        operands = [x + 1j * x[..., ::-1] if x.ndim else np.array(x + 1j * x) for x in operands]
    compare(equation, *operands)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Any]]:
    """The operands of each product."""
    seen: list[tuple[Any, Any, Any]] = []
    plain = contraction.matmul
    monkeypatch.setattr(contraction, "matmul", lambda a, b, out=None, **options: (
        seen.append((a, b, out)), plain(a, b, out=out, **options))[1])
    return seen


@pytest.mark.parametrize(("equation", "shapes", "sizes"), [
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], (2, 3, 4, 5)), ("ij,jk->ki", [(3, 4), (4, 5)], (5, 4, 3)),
    ("abij,ijk->abk", [(2, 3, 4, 5), (4, 5, 6)], (6, 20, 6)), ("ij,ij->i", [(3, 4), (3, 4)], (3, 1, 4, 1)),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)], (2, 3, 4, 5, 6)), ("bqhd,bkhd->bhqk", [(2, 4, 3, 5),
     (2, 6, 3, 5)], (2, 3, 4, 5, 6)), ("mnij,pqij->mnpq", [(2, 3, 4, 5), (6, 7, 4, 5)], (6, 20, 42)),
    ("ijmn,ijpq->pqmn", [(4, 5, 2, 3), (4, 5, 6, 7)], (42, 20, 6))])
def test_one_product_without_a_copy(equation: str, shapes: list[tuple[int, ...]], sizes: tuple[int, ...],
                                    products: list[Any]) -> None:
    operands = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    compare(equation, *operands)
    (a, b, _), _ = products
    assert (*a.shape, b.shape[-1]) == sizes
    products.clear()
    pg.einsum(equation, *operands)
    assert {id(x) for operand in operands for x in (operand,)} == {
        id(next(y for y in operands if np.shares_memory(x, y))) for x in products[0][:2]}


def test_steps_are_kept_by_layout_and_not_by_identity(monkeypatch: pytest.MonkeyPatch, products: list[Any]) -> None:
    a, b, c = (normal(6, 6, seed=seed) for seed in (1, 2, 3))
    calls = {"ij,jk,kl->il": lambda x, y, z: pg.einsum("ij,jk,kl->il", x, y, z),
             "ij,kj,kl->il": lambda x, y, z: pg.tensordot(pg.tensordot(x, y, (1, 1)), z, 1)}
    for call in calls.values():
        call(a, a, a)
    with monkeypatch.context() as patch:
        patch.setattr(contraction, "_contract", None)
        for terms, call in calls.items():
            check(call(a, b, c), EINSUM(terms, a, b, c), EINSUM(terms, *map(abs, (a, b, c))))
        with pytest.raises(TypeError):
            pg.einsum("ij,jk,kl->il", a, b.T, c)  # other strides


def test_a_later_sum_needs_no_copy(products: list[Any]) -> None:
    pg.einsum("ab,apc,bpd->cd", normal(8, 8), normal(8, 4, 8), normal(8, 4, 8), optimize=[(0, 1), (0, 1)])
    (_, _, _), (x, y, _) = products
    assert (x.shape, y.shape) == ((8, 32), (32, 8)) and not x.flags.owndata and not y.flags.owndata
    assert x.flags.f_contiguous and y.flags.c_contiguous


def test_an_attention_shaped_chain_contracts_cheaply(products: list[Any]) -> None:
    pg.einsum("ab,bc,cd->ad", normal(2, 30), normal(30, 30), normal(30, 2))
    assert [a.shape for a, _, _ in products] in ([(2, 30), (2, 30)], [(30, 30), (2, 30)])
    products.clear()
    pg.linalg.multi_dot([normal(20, 3), normal(3, 30), normal(30, 2), normal(2)])
    assert all(1 in (a.shape[0], b.shape[-1]) for a, b, _ in products)


def test_out(products: list[Any]) -> None:
    a, b = normal(2, 3, 4), normal(2, 4, 5)
    out = np.zeros((5, 2, 3), np.float32)
    assert pg.einsum("bij,bjk->kbi", a, b, out=out) is out and np.shares_memory(products[0][2], out)
    assert np.allclose(out, np.einsum("bij,bjk->kbi", a, b), atol=1e-5)
    out = np.zeros((2, 3), np.float32)
    assert pg.einsum("bij,bik->bi", a, normal(2, 3, 6), out=out) is out
    assert np.allclose(out, np.einsum("bij,bik->bi", a, normal(2, 3, 6)), atol=1e-5)
    with pytest.raises(InvalidValue, match=r"out has shape \(2, 3\), the result has \(2, 3, 5\)"):
        pg.einsum("bij,bjk->bik", a, b, out=out)
    out.setflags(write=False)
    with pytest.raises(InvalidValue, match="read-only"):
        pg.einsum("bij->bi", a, out=out)


def test_lists_of_labels() -> None:
    a, b = normal(2, 3, 4), normal(4, 5)
    assert np.allclose(pg.einsum(a, [..., 7], b, [7, 8], [8, ...]), np.einsum(a, [..., 7], b, [7, 8], [8, ...]),
                       atol=1e-5)


@pytest.mark.parametrize("axes", [2, 1, 0, ([2, 1], [0, 1]), ((-1, -2), (1, 0)), (2, 1), ([], [])])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_tensordot(axes: Any, dtype: Any) -> None:
    a, b = normal(3, 4, 4).astype(dtype), normal(4, 4, 2).astype(dtype)
    check(pg.tensordot(a, b, axes), np.tensordot(a, b, axes), 60)


@pytest.mark.parametrize(("a", "b"), [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (4,)), ((2, 3, 4), (5, 4, 6)),
                                      ((), (3, 4)), ((3,), ()), ((0,), (0,)), ((4,), (2, 4, 3))])
def test_dot(a: Any, b: Any) -> None:
    x, y = normal(*a), normal(*b, seed=1)
    check(pg.dot(x, y), np.dot(x, y), 10)


def test_vecdot() -> None:
    a, b = normal(3, 1, 4) + 1j * normal(3, 1, 4, seed=1), normal(5, 4) - 1j * normal(5, 4, seed=2)
    check(pg.vecdot(a, b), (a.conj() * b).sum(-1), 10)
    check(pg.vecdot(normal(3, 4), normal(3, 4, seed=1), axis=-2), (normal(3, 4) * normal(3, 4, seed=1)).sum(-2), 10)


@pytest.mark.parametrize("shapes", [[(3, 4), (4, 5)], [(3, 4), (4, 5), (5, 2)], [(3,), (3, 4), (4, 2)], [(3,), (3,)],
                                    [(3, 1), (1, 4), (4,)], [(6, 2), (2, 7), (7, 3), (3, 5), (5, 4), (4, 6)]])
def test_multi_dot(shapes: Any) -> None:
    arrays = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    check(pg.linalg.multi_dot(arrays), np.linalg.multi_dot(arrays), 500)


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda: pg.einsum("ij,jk", normal(2, 3)), InvalidValue, "operands"),
    (lambda: pg.einsum("ij,jk", normal(2, 3), normal(4, 2)), InvalidValue,
     "ij,jk of shapes (2, 3), (4, 2): 'j' has sizes 3 and 4"),
    (lambda: pg.einsum("ij,jk,k", normal(2, 3), normal(4, 2), normal(2)), InvalidValue, "'ij,jk,k'"),
    (lambda: pg.einsum("ijk,jk", normal(2, 3), normal(3, 2)), InvalidValue, "'ijk,jk'"),
    (lambda: pg.einsum("ij->ijk", normal(2, 3)), InvalidValue, "did not appear in the input"),
    (lambda: pg.einsum("ii", normal(1, 5)), InvalidValue, "one label must be equal"),
    (lambda: pg.einsum("ij", normal(2, 3).astype(np.float64)), InvalidType, "operand 0 is float64"),
    (lambda: pg.einsum("ij,j", normal(2, 3), normal(3) + 1j), InvalidType, "operand 1 is complex"),
    (lambda: pg.einsum("ij", [[1.0]]), InvalidType, "operand 0 is a list"),
    (lambda: pg.einsum("i,i->i", normal(3), normal(3), precision="half"), InvalidValue, "'half'"),
    (lambda: pg.tensordot(normal(2, 3), normal(2, 3), 1), InvalidValue, "of equal sizes"),
    (lambda: pg.tensordot(normal(2, 3), normal(3, 2), 3), InvalidValue, "axes = 3"),
    (lambda: pg.dot(normal(2, 3), normal(2, 3)), InvalidValue, "of equal sizes"),
    (lambda: pg.vecdot(normal(2, 3), normal(2, 3), axis=0), InvalidValue, "axis = 0"),
    (lambda: pg.vecdot(normal(2, 3), normal(2, 1)), InvalidValue, "a (2, 3) and b (2, 1) over axis = -1"),
    (lambda: pg.linalg.multi_dot([normal(2, 3)]), InvalidValue, "pass two or more"),
    (lambda: pg.linalg.multi_dot([normal(2, 3), normal(2, 3)]), InvalidValue, "shapes [(2, 3), (2, 3)]"),
    (lambda: pg.linalg.multi_dot([normal(2, 3), normal(3), normal(3, 3)]), InvalidValue, "[(2, 3), (3,), (3, 3)]"),
])
def test_refused(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert words in str(error.value)


class TestTorch:
    """Gradients, transforms and the compiler."""

    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason="needs torch")

    def operands(self, torch: Any) -> list[Any]:
        return [torch.from_numpy(normal(*shape, seed=i)).requires_grad_()
                for i, shape in enumerate(((2, 3, 4), (4, 5), (5, 3)))]

    def test_gradients(self, torch: Any) -> None:
        operands = self.operands(torch)
        got, want = (torch.autograd.grad(f("bij,jk,kl->lb", *operands).square().sum(), operands)
                     for f in (pg.einsum, torch.einsum))
        for x, y in zip(got, want, strict=True):
            assert torch.allclose(x, y, rtol=1e-4, atol=1e-3)
        with pytest.raises(InvalidValue, match="operand 0 requires a gradient"):
            pg.einsum("bij,jk->bik", *operands[:2], out=torch.empty(2, 3, 5))

    def test_contractions_of_networks(self, torch: Any) -> None:
        from lab.einsum import CASES, worst

        assert len({case.terms for case in CASES}) == len(CASES) >= 20
        assert all(worst(case, "ieee", "cpu", 5) < 1e-6 for case in CASES)

    def test_vmap_and_compile(self, torch: Any) -> None:
        a, b, c = self.operands(torch)
        assert torch.allclose(torch.vmap(lambda x: pg.einsum("ij,jk->ki", x, b))(a), torch.einsum("bij,jk->bki", a, b),
                              atol=1e-5)
        dynamic = torch.compile(lambda *x: pg.einsum("bij,jk->kbi", *x), backend="aot_eager", fullgraph=True,
                                dynamic=True)
        for rows in (a, a[:, :2]):
            assert torch.allclose(dynamic(rows, b), torch.einsum("bij,jk->kbi", rows, b), atol=1e-4)
        compiled = torch.compile(lambda *x: pg.einsum("bij,jk,kl->lb", *x), backend="aot_eager", fullgraph=True)
        assert torch.allclose(compiled(a, b, c), torch.einsum("bij,jk,kl->lb", a, b, c), atol=1e-4)


def test_a_result_in_the_place_of_its_operand():
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    want = x.T.copy()
    assert pg.einsum("ij->ji", x, out=x) is x and np.array_equal(x, want)
    product = pg.einsum("ij,jk->ik", x, want, out=(out := np.empty((3, 3), np.float32)))
    assert product is out and np.array_equal(out, x @ want)


@pytest.mark.parametrize(("words", "options"), [
    ("ij,jk->ik", {"optimize": [(0, 1), (0, 1)]}), ("ij,jk->ik", {"optimize": [(0, 7)]}), ("ij,jk->ik,", {})])
def test_what_no_path_takes_is_refused(words, options):
    a = np.ones((3, 3), np.float32)
    with pytest.raises(InvalidValue, match=r"as for numpy\.einsum"):
        pg.einsum(words, a, a, **options)
    assert pg.einsum("ij,jk->ik", a, a, optimize=["einsum_path", (0, 1)])[0, 0] == 3
    assert pg.linalg.multi_dot([a, np.ones((3, 0), np.float32), np.ones((0, 2), np.float32)]).shape == (3, 2)


class TestJax:
    def test_values_derivatives_and_jit(self) -> None:
        jax = pytest.importorskip("jax", reason="needs jax")
        with jax.default_device(jax.devices("cpu")[0]):
            a, b, c = (jax.numpy.asarray(normal(*shape, seed=i)) for i, shape in enumerate(((2, 3, 4), (4, 5), (5, 3))))

            def ours(a: Any, b: Any, c: Any) -> Any:
                return (pg.einsum("bij,jk,kl->lb", a, b, c) ** 2).sum()

            def theirs(a: Any, b: Any, c: Any) -> Any:
                return (jax.numpy.einsum("bij,jk,kl->lb", a, b, c) ** 2).sum()

            got, want = (jax.jit(jax.grad(f, (0, 1, 2)))(a, b, c) for f in (ours, theirs))
            for x, y in zip(got, want, strict=True):
                assert np.allclose(x, y, rtol=1e-4, atol=1e-3)
            assert "peakgemm_gemm[" in str(jax.make_jaxpr(ours)(a, b, c))
            z = a + 1j * a
            assert np.allclose(jax.jit(lambda z: pg.vecdot(z, z))(z), (abs(z) ** 2).sum(-1), atol=1e-4)
            assert np.allclose(pg.tensordot(a, b, 1), jax.numpy.tensordot(a, b, 1), atol=1e-4)
