"""The shapes that `peakgemm bench` measures and `peakgemm tune` tunes, in suites by what makes them hard."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from ...arrays.base import View
from ...calls.canonical import canonicalise
from ...errors import InvalidValue
from ...problem import MAX_SIZE, Problem
from .drawn import drawn


@dataclass(frozen=True, slots=True)
class Case:
    """``C (M, N) = op(A) op(B)``, ``batch`` times, on packed arrays; ``trans_a``: A lies as ``(K, M)``, and so B."""

    name: str
    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    batch: int = 1

    @property
    def layout(self) -> str:
        """``NN``, ``NT``, ``TN`` or ``TT``: A's letter, then B's."""
        return "NT"[self.trans_a] + "NT"[self.trans_b]

    @property
    def size(self) -> str:
        """``MxNxK``, and where they say something the layout and the batch: ``64x64x64:NT*1000``."""
        return (f"{self.m}x{self.n}x{self.k}" + (f":{self.layout}" if self.layout != "NN" else "")
                + (f"*{self.batch}" if self.batch > 1 else ""))

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def bytes(self) -> int:
        """Of the operands and the result, each counted once."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n) * self.batch

    def problem(self) -> tuple[Problem, bool]:
        """What `peakgemm.matmul` hands its kernels for such arrays, and whether it exchanges them (C^T = B^T A^T)."""
        lead = (self.batch,) if self.batch > 1 else ()
        a = View.packed((*lead, self.k, self.m)).mT if self.trans_a else View.packed((*lead, self.m, self.k))
        b = View.packed((*lead, self.n, self.k)).mT if self.trans_b else View.packed((*lead, self.k, self.n))
        canonical = canonicalise(a, b)
        assert canonical.problem is not None  # packed arrays are never copied
        return canonical.problem, canonical.swapped


def _plain(m: int, n: int, k: int, layout: str = "NN", batch: int = 1, name: str = "") -> Case:
    case = Case(name, m, n, k, layout[0] == "T", layout[1] == "T", batch)
    return case if name else Case(case.size, m, n, k, case.trans_a, case.trans_b, batch)


SQUARES = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
_ODD = sorted({size - 1 for size in SQUARES if size <= 8192} | {127, 509, 1021, 2039, 4093})
_THIN = (1, 2, 4, 8, 16, 32, 64, 128)

# Layers as torch runs them: y = x W^T with W stored (out, in), so NT; dx = dy W is NN, dW = dy^T x is TN.
_MODELS = (
    _plain(128, 2304, 768, "NT", name="BERT qkv, 128 tokens"),
    _plain(4096, 2304, 768, "NT", name="BERT qkv, 8 x 512"),
    _plain(4096, 3072, 768, "NT", name="BERT MLP up, 8 x 512"),
    _plain(4096, 768, 3072, "NT", name="BERT MLP down, 8 x 512"),
    _plain(4096, 768, 3072, "NN", name="BERT MLP up, grad of x"),
    _plain(3072, 768, 4096, "TN", name="BERT MLP up, grad of W"),
    _plain(512, 512, 64, "NT", 96, "BERT scores, 8 x 12 heads"),
    _plain(512, 64, 512, "NN", 96, "BERT context, 8 x 12 heads"),
    _plain(6304, 3072, 768, "NT", name="ViT-B MLP up, 32 x 197"),
    _plain(1024, 50257, 768, "NT", name="GPT-2 head, 1024 tokens"),
    _plain(1, 11008, 4096, "NT", name="Llama-7B MLP up, 1 token"),
    _plain(16, 11008, 4096, "NT", name="Llama-7B MLP up, 16 tokens"),
    _plain(512, 11008, 4096, "NT", name="Llama-7B MLP up, 512"),
    _plain(1, 4096, 11008, "NT", name="Llama-7B MLP down, 1 token"),
    _plain(512, 4096, 11008, "NT", name="Llama-7B MLP down, 512"),
    _plain(2048, 4096, 4096, "NT", name="Llama-7B attention, 2048"),
    # Convolutions as im2col: (images x height x width, in x kernel) by (out, in x kernel)^T.
    _plain(32 * 112 * 112, 64, 3 * 49, "NT", name="ResNet-50 conv1, 32 images"),
    _plain(32 * 56 * 56, 64, 64 * 9, "NT", name="ResNet-50 conv2 3x3"),
    _plain(32 * 56 * 56, 256, 64, "NT", name="ResNet-50 conv2 1x1"),
    _plain(32 * 28 * 28, 128, 128 * 9, "NT", name="ResNet-50 conv3 3x3"),
    _plain(32 * 14 * 14, 256, 256 * 9, "NT", name="ResNet-50 conv4 3x3"),
    _plain(32 * 7 * 7, 512, 512 * 9, "NT", name="ResNet-50 conv5 3x3"),
    _plain(32, 1000, 2048, "NT", name="ResNet-50 fc, 32 images"),
    _plain(1, 4096, 1024, "NT", name="LSTM-1024 cell, batch 1"),
    _plain(64, 4096, 1024, "NT", name="LSTM-1024 cell, batch 64"),
    _plain(4096, 4096, 128, "NN", name="LU update, panel 128"),
    _plain(8192, 8192, 256, "NN", name="LU update, panel 256"),
    _plain(4096, 4096, 128, "NT", name="Cholesky update, panel 128"),
    _plain(8192, 8192, 256, "NT", name="Cholesky update, panel 256"),
    _plain(128, 128, 262144, "TN", name="tall-skinny QR, A^T A"),
    _plain(262144, 32, 32, "NN", name="tall-skinny QR, apply R"),
    _plain(64, 64, 64, "NN", 1000, "1000 blocks of 64"),
    _plain(256, 256, 256, "NN", 64, "64 blocks of 256"),
)

SUITES: dict[str, tuple[Case, ...]] = {
    "square": tuple(_plain(s, s, s) for s in SQUARES),
    "odd": tuple(_plain(s, s, s) for s in _ODD),
    "k1024": tuple(_plain(s, s, 1024) for s in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)),
    "deepk": tuple(_plain(*s) for s in ((64, 64, 65536), (128, 128, 131072), (256, 256, 65536), (512, 512, 32768),
                                        (1024, 1024, 16384))),
    "skinny": (*(_plain(s, 4096, 4096) for s in _THIN), *(_plain(4096, s, 4096) for s in _THIN),
               _plain(1, 8192, 8192), _plain(8192, 1, 8192)),
    "shallow": tuple(_plain(4096, 4096, k) for k in (8, 16, 32, 64, 128, 256)),
    "layouts": tuple(_plain(s, s, s, layout) for s in (1024, 4096, 8192) for layout in ("NN", "NT", "TN", "TT")),
    "models": _MODELS,
    "small": (*(_plain(s, s, s, batch=count) for s, count in ((4, 100000), (8, 50000), (12, 30000), (16, 20000),
                                                              (24, 10000), (32, 10000), (33, 8000), (48, 3000))),
              *(_plain(32, 32, 32, layout, 10000) for layout in ("NT", "TN")), _plain(64, 64, 32, batch=4000),
              *(_plain(10**6, s, s) for s in (8, 16)), *(_plain(s, 10**6, s) for s in (8, 20)),
              _plain(262144, 16, 64), _plain(262144, 64, 16), _plain(262144, 32, 32, "TN"), _plain(32, 262144, 32),
              _plain(262143, 31, 33)),
}
NAMES = (*SUITES, "drawn")  # a sample of everything else: its rows say how often, not where, ours is slower


def words(text: str, what: str, valid: Collection[str]) -> list[str]:
    """The words between the commas of an option, each once.

    Raises:
        InvalidValue: a word that is none of ``valid``; the message lists those.
    """
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in valid:
            raise InvalidValue(f"unknown {what} {name!r}; valid ones: {', '.join(valid)}")
    return names


def suites(text: str) -> dict[str, tuple[Case, ...]]:
    """Suites by name: ``square,odd``; ``all`` of them but ``drawn``.

    Raises:
        InvalidValue: an unknown name; the message lists those there are.
    """
    names = words(text, "suite", ("all", *NAMES))
    chosen = {name: cases for name, cases in SUITES.items() if name in names or "all" in names}
    if "drawn" in names:
        chosen["drawn"] = tuple(islice(drawn_cases(0), 200))
    return chosen


def drawn_cases(seed: int) -> Iterator[Case]:
    """Cases without end that nobody chose (drawn.py); those of seed 0 are the suite."""
    return (_plain(*shape) for shape in drawn(seed))


def cases(text: str) -> tuple[Case, ...]:
    """``MxNxK[:layout][*batch]``, one or several with commas: ``4096x4096x64:NT,64x64x64*1000``.

    Raises:
        InvalidValue: text of another form, or a size outside its limits.
    """
    parsed = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,12})x(\d{1,12})x(\d{1,12})(?::([NT]{2}))?(?:\*(\d{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            raise InvalidValue(f"{part!r} is not MxNxK[:layout][*batch]; write 4096x4096x1024, 512x512x64:NT or "
                               "64x64x64*1000 (layouts: NN, NT, TN, TT)")
        m, n, k, batch = (int(match[i] or 1) for i in (1, 2, 3, 5))
        if not all(1 <= size <= MAX_SIZE for size in (m, n, k, batch)):
            raise InvalidValue(f"{part!r}: each size must lie in 1..{MAX_SIZE}")
        parsed.append(_plain(m, n, k, match[4] or "NN", batch))
    return tuple(parsed)


def groups(suite: str | None, shape: str | None) -> dict[str, tuple[Case, ...]]:
    """What ``--suite`` and ``--shape`` name together; the shapes are a suite called ``shapes``.

    Raises:
        InvalidValue: see `suites` and `cases`.
    """
    return {**(suites(suite) if suite else {}), **({"shapes": cases(shape)} if shape else {})}


def distinct(chosen: dict[str, tuple[Case, ...]]) -> list[Case]:
    """The cases without those that make the same problem as an earlier one."""
    by_problem: dict[Problem, Case] = {}
    for case in (case for group in chosen.values() for case in group):
        by_problem.setdefault(case.problem()[0], case)
    return list(by_problem.values())
