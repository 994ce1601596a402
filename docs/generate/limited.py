"""What limits a rung, beside the rung before: bars of a chapter, by the record of `python -m lab.limits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peakgemm.kernels.registry import Kernel

LEAST = 0.02  # shares below it on both rungs are left out


def limited(shown: Sequence[tuple[Kernel, Mapping[str, Any]]]) -> str:
    """HTML; ``shown``: rungs with their rows of the record, the chapter's own last."""
    kernel, own = shown[-1]
    said = (f"<p><strong>{kernel.label}</strong> is limited by <strong>{own['limiter']}</strong>. The model says "
            f"{own['modelled_tflops']:.1f} TFLOPS; {own['tflops']:.1f} were measured.</p>")
    heads = "".join(f'<th scope="col">{one.label}</th>' for one, _ in shown)
    parts = "".join(_rows(title, heads, [row[field] for _, row in shown]) for title, field in (
        ("share of the time that it is busy", "busy"), ("share of a warp's cycles", "stalls")))
    return (f'<figure class="drawn"><div class="scrolls" role="region" aria-label="What limits it" tabindex="0">{said}'
            f'{parts}</div><figcaption><a href="../limits.html">How this is modelled</a>, at 4096. Nsight Compute '
            "names the stalls so.</figcaption></figure>")


def _rows(title: str, heads: str, shares: Sequence[Mapping[str, float]]) -> str:
    names = sorted({name for each in shares for name, share in each.items() if share >= LEAST},
                   key=lambda name: -shares[-1].get(name, 0.0))
    body = "".join(f'<tr><th scope="row">{name}</th>' + "".join(_cell(each.get(name, 0.0)) for each in shares) + "</tr>"
                   for name in names)
    return (f'<table class="bars"><thead><tr><th scope="col">{title}</th>{heads}</tr></thead><tbody>{body}</tbody>'
            "</table>")


def _cell(share: float) -> str:
    return f'<td><span class="bar" style="width: {6 * share:.2f}rem"></span>{100 * share:.0f} %</td>'
