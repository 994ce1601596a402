"""What programs that others wrote gain from peakgemm's products in place of torch's: results/<gpu>/programs.json.

    python -m lab.programs --json results/h100/programs.json          on a GPU: about a minute with warm caches
    python -m lab.programs --quick --json quick.json                  tiny, on the CPU: only to see it run

Models of transformers are made from their configurations, with random weights: nothing is downloaded. GPyTorch fits a
Gaussian process; torch's own `matrix_exp`, `cdist` and `pca_lowrank` run as they are. No line of any is changed: all
run within `peakgemm.torch.use(precision)`, with ``linalg=True`` those that factor matrices, TF32 off. Every repeat runs
torch's own products and peakgemm's in turn on the same data; the first repeats warm up. The speed-up is the median of
the ratios within a repeat. Agreement is the largest difference from the result with torch's FP32 products, and from
that of the same program in FP64, over the largest value.

A package that is not installed leaves a row that says so. The record is written after every program; those that the
budget (--seconds) does not reach are left out and told.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.workload import TORCH, Clock, Entry, Row, row_of
from peakgemm.runtime import device
from peakgemm.tools.bench import records

WARM_UP = 2  # repeats that are not timed
REPEATS = 7
Run = Callable[[], Tensor]  # a result to compare; the same at every call


@dataclass(frozen=True)
class Program:
    """Somebody's program: ``make(dtype, place, size)`` gives what is timed. ``exact``: whether FP64 gives the same;
    ``linalg``: whether torch's linear algebra is rerouted too."""

    name: str
    package: str
    unit: str
    make: Callable[[torch.dtype, str, dict[str, int]], Run]
    size: dict[str, int]
    quick: dict[str, int]
    exact: bool = True
    linalg: bool = False


def _tokens(size: dict[str, int], place: str) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(size["vocabulary"], (size["batch"], size["tokens"]), generator=draw).to(place)


def _forward(model: torch.nn.Module, dtype: torch.dtype, place: str, **inputs: Tensor) -> Run:
    model = model.to(place, dtype).eval()

    def run() -> Tensor:
        with torch.no_grad():
            found = model(**inputs)
        return found.logits if hasattr(found, "logits") else found.last_hidden_state  # type: ignore[no-any-return]
    return run


def bert(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """BertModel, forward."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    with torch.device(place):  # weights are drawn there
        model = BertModel(BertConfig(
            vocab_size=size["vocabulary"], hidden_size=size["width"], num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"], intermediate_size=4 * size["width"]))
    return _forward(model, dtype, place, input_ids=_tokens(size, place))


def gpt2(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """GPT2LMHeadModel: loss and gradients; the gradient of the first layer's query, key and value is compared."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    with torch.device(place):  # weights are drawn there
        model = GPT2LMHeadModel(GPT2Config(
            vocab_size=size["vocabulary"], n_positions=size["tokens"], n_embd=size["width"], n_layer=size["layers"],
            n_head=size["heads"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).to(place, dtype).train()
    tokens = _tokens(size, place)

    def run() -> Tensor:
        model.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        return model.transformer.h[0].attn.c_attn.weight.grad  # type: ignore[no-any-return]
    return run


def vit(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """ViTModel, forward."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    with torch.device(place):  # weights are drawn there
        model = ViTModel(ViTConfig(
            hidden_size=size["width"], num_hidden_layers=size["layers"], num_attention_heads=size["heads"],
            intermediate_size=4 * size["width"], image_size=size["pixels"], patch_size=size["patch"]))
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(size["batch"], 3, size["pixels"], size["pixels"], generator=draw, dtype=torch.float64)
    return _forward(model, dtype, place, pixel_values=images.float().to(place, dtype))


def llama(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """LlamaForCausalLM, a prompt's forward pass."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(place):  # weights are drawn there
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=size["vocabulary"], hidden_size=size["width"], intermediate_size=size["mlp"],
            num_hidden_layers=size["layers"], num_attention_heads=size["heads"], num_key_value_heads=size["heads"] // 2,
            max_position_embeddings=size["tokens"]))
    return _forward(model, dtype, place, input_ids=_tokens(size, place))


def gaussian_process(dtype: torch.dtype, place: str, size: dict[str, int], cholesky: bool = False) -> Run:
    """Exact GP with an RBF kernel: marginal likelihood and its gradient, by conjugate gradients on random probes; or
    with ``cholesky`` by a factorization, of which the likelihood alone is compared."""
    import gpytorch

    draw = torch.Generator().manual_seed(1)
    x = torch.rand(size["points"], size["features"], generator=draw).to(place, dtype)
    y = torch.sin(6 * x).sum(-1)

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc, name-defined]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(place, dtype)
    model = Model(likelihood).to(place, dtype).train()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def run() -> Tensor:
        torch.manual_seed(0)  # the same probes each time
        model.zero_grad(set_to_none=True)
        with (gpytorch.settings.max_cholesky_size(20000 if cholesky else 800),
              gpytorch.settings.fast_computations(*3 * (not cholesky,))):
            loss = -bound(model(x), y)
            loss.backward()
        if cholesky:
            return loss.detach().reshape(1)
        return torch.cat([loss.detach().reshape(1), *(p.grad.reshape(-1) for p in model.parameters())])
    return run


def _drawn(shape: Sequence[int], dtype: torch.dtype, place: str) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=draw).to(place, dtype)


def matrix_exp(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """torch.matrix_exp of random matrices of norm about 2."""
    a = _drawn((size["batch"], size["n"], size["n"]), dtype, place) / size["n"] ** 0.5
    return lambda: torch.matrix_exp(a)


def cdist(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """torch.cdist of two clouds of points."""
    x = _drawn((2 * size["points"], size["features"]), dtype, place)
    return lambda: torch.cdist(x[:size["points"]], x[size["points"]:])


def pca(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """torch.pca_lowrank: the singular values."""
    a = _drawn((size["rows"], size["columns"]), dtype, place)
    a = a * torch.linspace(4, 0.1, size["columns"], device=place, dtype=dtype)

    def run() -> Tensor:
        torch.manual_seed(0)
        return torch.pca_lowrank(a, q=size["rank"], niter=4)[1]
    return run


def kfac(dtype: torch.dtype, place: str, size: dict[str, int]) -> Run:
    """The preconditioner of K-FAC (Martens and Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate
    Curvature", 2015, sections 5 and 6.3) for four layers: running averages of both Kronecker factors, factored Tikhonov
    damping, and the gradient of the weights multiplied by both inverses."""
    decay, damping, width = 0.95, 1e-3**0.5, size["width"]
    widths = (width // 4, width // 2, width, width, width // 4)
    draws = [_drawn((size["batch"], m), dtype, place) for m in widths]
    inputs, slopes = draws[:-1], [x.flip(0) / size["batch"] ** 0.5 for x in draws[1:]]
    factors = [[torch.eye(x.shape[1], dtype=dtype, device=place) for x in each] for each in (inputs, slopes)]

    def run() -> Tensor:
        updates = []
        for x, g, old_a, old_g in zip(inputs, slopes, *factors, strict=True):
            a = decay * old_a + (1 - decay) / len(x) * (x.mT @ x)
            s = decay * old_g + (1 - decay) / len(g) * (g.mT @ g)
            pi = ((a.trace() / len(a)) / (s.trace() / len(s))).sqrt()
            a.diagonal().add_(pi * damping)
            s.diagonal().add_(damping / pi)
            update = torch.cholesky_solve(g.mT @ x, torch.linalg.cholesky(s))
            update = torch.cholesky_solve(update.mT, torch.linalg.cholesky(a))
            updates.append(update[:8].reshape(-1))
        return torch.cat(updates)
    return run


_TINY = {"batch": 2, "tokens": 16, "width": 32, "layers": 1, "heads": 2, "vocabulary": 64}
PROGRAMS = (
    Program("BERT", "transformers", "forward pass", bert,
            {"batch": 16, "tokens": 512, "width": 768, "layers": 12, "heads": 12, "vocabulary": 30522}, _TINY),
    Program("GPT-2", "transformers", "loss and gradients", gpt2,
            {"batch": 8, "tokens": 512, "width": 768, "layers": 12, "heads": 12, "vocabulary": 50257}, _TINY),
    Program("ViT", "transformers", "forward pass", vit,
            {"batch": 64, "pixels": 224, "patch": 16, "width": 768, "layers": 12, "heads": 12},
            {"batch": 2, "pixels": 32, "patch": 16, "width": 32, "layers": 1, "heads": 2}),
    Program("Llama", "transformers", "forward pass", llama,
            {"batch": 2, "tokens": 1024, "width": 2048, "mlp": 5632, "layers": 16, "heads": 16, "vocabulary": 32000},
            {**_TINY, "mlp": 64}),
    Program("GPyTorch", "gpytorch", "likelihood and gradient", gaussian_process,
            {"points": 8192, "features": 8}, {"points": 64, "features": 2}, exact=False),
    Program("GPyTorch by Cholesky", "gpytorch", "likelihood and gradient", partial(gaussian_process, cholesky=True),
            {"points": 12000, "features": 8}, {"points": 64, "features": 2}, linalg=True),
    Program("K-FAC", "torch", "preconditioning", kfac, {"batch": 8192, "width": 4096}, {"batch": 48, "width": 32},
            linalg=True),
    Program("matrix_exp", "torch", "call", matrix_exp, {"batch": 4, "n": 2048}, {"batch": 2, "n": 24}),
    Program("cdist", "torch", "call", cdist, {"points": 16384, "features": 512}, {"points": 64, "features": 8}),
    Program("pca_lowrank", "torch", "call", pca, {"rows": 32768, "columns": 4096, "rank": 256},
            {"rows": 96, "columns": 32, "rank": 4}, exact=False),
)


def distance(x: Tensor, other: Tensor) -> float:
    """Largest difference over the largest value; infinite where one of them is no number."""
    x, other = x.double(), other.double()
    found = float((x - other).abs().max() / other.abs().max())
    return found if found == found else float("inf")


def measure(program: Program, precisions: Sequence[str], place: str, quick: bool) -> list[Row]:
    """A row for torch's products and for each precision."""
    size = program.quick if quick else program.size
    clock, entries = Clock(place), [Entry(products, program.linalg) for products in (TORCH, *precisions)]
    run = program.make(torch.float32, place, size)
    for repeat in range((1 if quick else WARM_UP) + (2 if quick else REPEATS)):
        for entry in entries:
            entry.outcomes.clear()
            clock.run(entry, run, keep=repeat >= (1 if quick else WARM_UP))
            entry.outcomes[0] = entry.outcomes[0].detach().cpu()
    del run
    exact = program.make(torch.float64, place, size)().detach().cpu() if program.exact else None
    rows = []
    for entry in entries:
        row = row_of(program.name, program.unit, entry, entries[0], size)
        del row["workload"]
        rows.append({"program": program.name, "package": program.package, "version": version(program.package), **row,
                     "from_fp32": distance(entry.outcomes[0], entries[0].outcomes[0]),
                     "from_fp64": None if exact is None else distance(entry.outcomes[0], exact)})
    return rows


def measured(chosen: Sequence[Program], precisions: Sequence[str], place: str, quick: bool,
             seconds: float) -> Iterator[list[Row]]:
    """The rows of one program after the other, until the budget is spent."""
    begun = time.monotonic()
    for program in chosen:
        if time.monotonic() - begun > seconds:
            print(f"{program.name}: left out, {seconds:g} s are spent", flush=True)
            continue
        try:
            version(program.package)
        except PackageNotFoundError:
            yield [{"program": program.name, "package": program.package, "version": "none", "products": TORCH,
                    "unit": program.unit, "error": f"{program.package} is not installed"}]
            continue
        yield measure(program, precisions, place, quick)
        if place == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--precision", default="ieee,emulated", help="of peakgemm.torch.use (ieee,emulated)")
    parser.add_argument("--only", help="programs by name, with commas (all)")
    parser.add_argument("--seconds", type=float, default=75, help="begin no further program after so many (75)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the CPU, where nothing is rerouted")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu = None if args.quick else device.require()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    chosen = [one for one in PROGRAMS if args.only is None or one.name in args.only.split(",")]
    rows: list[Row] = []
    for found in measured(chosen, args.precision.split(","), "cpu" if args.quick else "cuda", args.quick, args.seconds):
        rows += found
        for row in found:
            print(f"{row['program']:12} {row['products']:10} " + (row.get("error") or
                  f"{row['ms']:9.2f} ms, {row['speedup']:.3f} x torch; from torch {row['from_fp32']:.2g}; "
                  f"{row['rerouted']} products rerouted, {row['fallbacks']} not"), flush=True)
        records.write(args.json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"rungs": rows}],
                                                versions={"torch": torch.__version__}))


if __name__ == "__main__":
    main()
