"""What limits a rung, beside the rung before: bars of a chapter, by the record of `python -m lab.limits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peakgemm.kernels.registry import Kernel
from peakgemm.tools.limits.page import bars


def limited(shown: Sequence[tuple[Kernel, Mapping[str, Any]]]) -> str:
    """HTML; ``shown``: rungs with their rows of the record, the chapter's own last."""
    kernel, own = shown[-1]
    said = (f"<p><strong>{kernel.label}</strong> is limited by <strong>{own['limiter']}</strong>. The model says "
            f"{own['modelled_tflops']:.1f} TFLOPS; {own['tflops']:.1f} were measured.</p>")
    parts = "".join(bars(title, [one.label for one, _ in shown], [row[field] for _, row in shown]) for title, field in (
        ("share of the time that it is busy", "busy"), ("share of a warp's cycles", "stalls")))
    return (f'<figure class="drawn"><div class="scrolls" role="region" aria-label="What limits it" tabindex="0">{said}'
            f'{parts}</div><figcaption><a href="../limits.html">How this is modelled</a>, at 4096. Nsight Compute '
            "names the stalls so.</figcaption></figure>")
