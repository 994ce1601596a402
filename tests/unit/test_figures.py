"""No measured figure on a page is typed: it is generated, or it is a definition or a limit that is listed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate import values
from peakgemm.errors import InvalidValue

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
UNITS = (r"%|[TG]?FLOPS\b|[TGMk]B(?:/s)?\b|[mnuµ]s\b|s\b|seconds?\b|minutes?\b|(?:micro|milli)seconds?\b|times\b|"
         r"wavefronts?\b|sectors?\b|x\b(?! \d)|eps\b|p?J\b|k?W\b|[MG]Hz\b|cycles?\b|faster\b|slower\b|"
         r"of (?:cuBLAS|the speed|its speed|peak|torch)\b")
NUMBER = re.compile(rf"(?<![\w.^-])[x×]?\d[\d,]*(?:\.\d+)?(?: (?:to|and) \d[\d.,]*)?[ -]?(?:{UNITS})"
                    r"|(?<![\w.^])\d+\.\d{2,}\b(?!\.)|(?<![\w.])[x×]\d+\.\d+")
JOURNALS = {DOCS / "contributing" / "mechanisms.md", *(DOCS / "notebook").glob("*.md")}
# Definitions, limits and settings, by page, in the words that hold them. A measurement does not belong here.
DEFINED: dict[str, tuple[str, ...]] = {
    "README.md": ("Python 3.10",),
    "accuracy.md": ("above 1.1 times the reference's", "256 x 256 x K", "alpha = -0.75", "at most 1.3 times cuBLAS's",
                    "of at most 1.5 times"),
    "arrays.md": ("(2 GB",),
    "bench.md": ("plus 4 eps |A||B|", "more than 100 % when the", "and below 0.97 at",
                 "1 % faster by the"),
    "bill.md": ("within 1 % of the slots",),
    "caches.md": ("held to 1 GB",),
    "distributed.md": ("a time-out of 8 s",),
    "emulation.md": ("at most 2 eps |x y|", "at most 4 eps off", "5.25 eps |A||B|"),
    "explorer.md": ("may have 256 MB",),
    "first-steps.md": ("Python 3.10", "show 1,056 wavefronts where"),  # tests/simulate/test_chapters.py counts
    "fit-a-gpu.md": ("bursts of 0.6 ms", "wins 2 % of the mean"),
    "jax.md": ("jax 0.6, 0.8, 0.10 and 0.12",),
    "large.md": ("chunks of 8 MB", "moves up to 96 MB", "Up to 1 GB of the GPU's memory"),
    "linalg.md": ("passes at 1.2 times the larger error",),
    "measuring.md": ("5 to 60 times. A burst lasts 4 ms", "Below 0.2 ms a call", "agree to 1 %"),
    # Rules of the model, which tests/unit/test_register_reads.py and the record hold.
    "register-file.md": ("**Patience of 16 cycles.**", "refused 16 times in a row",
                         "than an LDS.128 in 8 cycles", "8 cycles or more before it can", "each 20 to 32 1.5 cycles"),
    "sass-tuning.md": ("| 98 % of peak |", "128 / 134 = 95.5 %", "stalls for 15 cycles"),
    "sass.md": ("4 cycles from FP32 to FP32",),
    "simulator.md": ("16 LDS.128 of 17 wavefronts",),  # by the rules of cost
}


def prose(text: str) -> str:
    """A page without what is generated, code, and the targets of links."""
    text = re.sub(r"<!-- ([\w-]+)(?::begin)? -->\n.*?<!-- (?:\1:end|/\1) -->", "", text, flags=re.S)
    text = values.MARK.sub("", text)
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`\n]*`", "", text)


def typed(text: str, defined: tuple[str, ...] = ()) -> list[str]:
    """The figures in a page's prose that are in none of the phrases ``defined``."""
    text = re.sub(r"\s+", " ", prose(text))
    for phrase in defined:
        assert phrase in text, f"not on the page any more: {phrase}"
        text = text.replace(phrase, "")
    return [" ".join(text[max(found.start() - 50, 0):found.end() + 20].split()) for found in NUMBER.finditer(text)]


def pages() -> list[Path]:
    """What users read: no journal, and not the rungs' pages, which are generated from headers and records."""
    return [page for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
            if page not in JOURNALS and page.parent.name != "rungs"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_is_typed(page: Path) -> None:
    found = typed(page.read_text(encoding="utf-8"), DEFINED.get(page.name, ()))
    assert not found, f"{page.name}: {found}: from a record (docs/generate/values.py), or a definition (DEFINED)"


@pytest.mark.parametrize("words", [
    "57 TFLOPS", "6.9 us", "is 1.73 of cuBLAS", "gains 5 %", "x2.8 for BERT", "3 times faster", "a ratio of 1.054",
    "7 to 10 s", "| 4096 | 1.051 |", "2.3x"])
def test_a_typed_figure_is_found(words: str) -> None:
    assert typed(f"It says {words}, they say.\n") != []


@pytest.mark.parametrize("words", [
    "4096 x 4096 x 16", "sm_90", "`57 TFLOPS`", "2^-22", "[here](a-1.25.md)", "<!-- =a.b -->57 TFLOPS<!-- /= -->"])
def test_what_is_no_figure_is_left_alone(words: str) -> None:
    assert typed(f"It says {words}, they say.\n") == []


def test_values_are_named_and_used() -> None:
    used = {name for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
            for _, name, _ in values.MARK.findall(page.read_text(encoding="utf-8"))}
    assert used == set(values.VALUES)
    for page in DOCS.rglob("*.md"):  # a comment at the start of a line would begin a block of HTML
        assert not re.search(r"^ *<!-- =", page.read_text(encoding="utf-8"), re.M), page.name
    assert not any(">not measured<" in page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for value in values.VALUES.values():
        assert (ROOT / "results" / value.record).is_file(), value.record


def test_values_are_filled_in() -> None:
    record = {"rungs": [{"name": "1x2x3", "ratio_to_cublas": 0.5}, {"name": "2x2x2:TN*51", "ratio_to_cublas": 2.0}]}
    text = ("at <!-- =drawn.ratio -->9<!-- /= -->, <!-- =drawn.slow -->\n<!-- /= -->: "
            "<!-- =drawn.slow-names -->x<!-- /= -->")
    assert values.fill(text, lambda _: record) == (
        "at <!-- =drawn.ratio -->1.00<!-- /= -->, <!-- =drawn.slow -->1<!-- /= -->: "
        "<!-- =drawn.slow-names -->1 x 2 x 3 (0.500)<!-- /= -->")
    assert values.fill(text, lambda _: None).count(">not measured<") == 3
    assert values.fill(text, lambda _: {"rungs": []}).count(">not measured<") == 1  # of no rows there is no mean
    with pytest.raises(InvalidValue, match=r"no value is named drawn\.none"):
        values.fill("<!-- =drawn.none -->1<!-- /= -->", lambda _: record)
