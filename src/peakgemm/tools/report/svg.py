"""Charts as SVG text: scales, axes, marks and labels, with colours that follow the reader's light or dark theme.

No mark has a colour of its own: each has a class, and `STYLE` says what it looks like in either theme. A page that
holds several charts carries that style once; `Chart.text` puts it into a file that stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10

LIGHT = {"ground": "#ffffff", "ink": "#1d2430", "soft": "#566070", "grid": "#dfe3e8",
         "s0": "#1f5fbf", "s1": "#b4480a", "s2": "#0b7a6c", "s3": "#9a2aa8", "s4": "#4d7a0f", "s5": "#8a5a00",
         "s6": "#bb1f45", "s7": "#475569"}
DARK = {"ground": "#14171c", "ink": "#e3e7ee", "soft": "#9aa5b5", "grid": "#2f3641",
        "s0": "#7fb2ff", "s1": "#ff9d5c", "s2": "#4fd1bd", "s3": "#e29bee", "s4": "#a8d65c", "s5": "#e8bd5a",
        "s6": "#ff8aa0", "s7": "#aab6c6"}
SERIES = 8  # colours
HEAT = (("#f3f6fb", "#1d2430"), ("#d6e4f7", "#1d2430"), ("#aecbf0", "#1d2430"), ("#7fabe3", "#101418"),
        ("#3f78c6", "#ffffff"), ("#1a4d99", "#ffffff"))  # of a cell: ground and ink, from least to most, in both themes

STYLE = (
    ".chart{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".chart text{fill:var(--ink)}.chart .soft{fill:var(--soft)}.chart .small{font-size:11px}"
    ".chart .bold{font-weight:600}.chart .end{text-anchor:end}.chart .mid{text-anchor:middle}"
    ".chart .grid{stroke:var(--grid);stroke-width:1}.chart .axis{stroke:var(--soft);stroke-width:1}"
    ".chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}.chart .dash{stroke-dasharray:5 3}"
    ".chart .dot{stroke-dasharray:1.5 3;stroke-linecap:round}.chart .thin{stroke-width:1}"
    ".chart .ring{fill:var(--ground);stroke-width:1.6}.chart .faint{opacity:.55}"
    + "".join(f".chart .s{i}{{fill:var(--s{i});stroke:var(--s{i})}}"
              f".chart .line.s{i},.chart .ring.s{i}{{stroke:var(--s{i})}}"
              f".chart text.s{i}{{stroke:none}}" for i in range(SERIES))
    + ".chart .line{fill:none}.chart .ring{fill:var(--ground)}.chart .ink{fill:var(--ink);stroke:var(--ink)}"
    ".chart .line.ink{fill:none}.chart text.ink{stroke:none}"
    ".chart text.halo{paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}"
    + "".join(f".chart .h{i}{{fill:{ground}}}.chart text.t{i}{{fill:{ink}}}" for i, (ground, ink) in enumerate(HEAT)))


def variables(colours: dict[str, str]) -> str:
    """Declarations of CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


class Scale:
    """Values to places along an axis, linear or logarithmic."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False) -> None:
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        """Where ``value`` lies; what is beyond the ends lies on them."""
        at, low, high = (log10(max(x, 1e-300)) if self.log else x for x in (value, self.low, self.high))
        share = min(max((at - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 6) -> list[float]:
        """Round values from end to end: of a logarithmic axis decades, with 2 and 5 between them where few."""
        if self.log:
            decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            digits = (1, 2, 5) if len(decades) <= 4 else (1,)
            every = max(1, len(decades) // about)
            values = [d * 10.0 ** e for e in decades if e % every == 0 for d in digits]
        else:
            raw = (self.high - self.low) / about
            step = 10.0 ** floor(log10(raw))
            step *= next(f for f in (1, 2, 5, 10) if f * step >= raw * 0.999)
            values = [step * i for i in range(ceil(self.low / step), floor(self.high / step + 1e-9) + 1)]
        return [x for x in values if self.low * (1 - 1e-9) <= x <= self.high * (1 + 1e-9)]


def short(value: float) -> str:
    """A tick in few characters: 0.5, 4096, 1e-4."""
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") if value and not 1e-3 <= abs(value) < 1e6 \
        else f"{value:g}"


class Chart:
    """An SVG of ``width`` x ``height`` with a plot area within its margins (top, right, bottom, left)."""

    def __init__(self, width: int, height: int, label: str, margins: tuple[int, int, int, int]) -> None:
        self.width, self.height, self.label = width, height, label
        self.top, self.left = margins[0], margins[3]
        self.right, self.bottom = width - margins[1], height - margins[2]
        self._parts: list[str] = []

    def x_scale(self, low: float, high: float, log: bool = False) -> Scale:
        """A scale across the plot area."""
        return Scale(low, high, self.left, self.right, log)

    def y_scale(self, low: float, high: float, log: bool = False) -> Scale:
        """A scale up the plot area."""
        return Scale(low, high, self.bottom, self.top, log)

    def x_axis(self, scale: Scale, title: str, ticks: Sequence[float] | None = None,
               text: Callable[[float], str] = short) -> None:
        """Grid lines, figures and a title below; figures that would touch the one before are left out."""
        last = -1e9
        for value in scale.ticks() if ticks is None else ticks:
            x, said = scale(value), text(value)
            self._parts.append(f'<path class="grid" d="M{x:.1f} {self.top}V{self.bottom}"/>')
            if x - last >= 6.6 * len(said) + 8:
                self.say(x, self.bottom + 16, said, "soft mid small")
                last = x
        self.say((self.left + self.right) / 2, self.bottom + 34, title, "soft mid")

    def y_axis(self, scale: Scale, title: str, ticks: Sequence[float] | None = None,
               text: Callable[[float], str] = short) -> None:
        """Grid lines and figures to the left; the title above."""
        for value in scale.ticks() if ticks is None else ticks:
            y = scale(value)
            self._parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.right}"/>')
            self.say(self.left - 6, y + 4, text(value), "soft end small")
        self.say(4, self.top - 10, title, "soft")

    def say(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Text with its baseline at ``(x, y)``."""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{_class(kind)}>{escape(words)}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str, hint: str = "") -> None:
        """A line through places."""
        if points:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self._parts.append(f'<path class="line {kind}" d="M{path}"{_hinted(hint, "path")}')

    def dot(self, x: float, y: float, kind: str, hint: str = "", radius: float = 3) -> None:
        """A round mark; ``hint`` is shown where one points at it."""
        self._parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{_hinted(hint, "circle")}')

    def box(self, x: float, y: float, width: float, height: float, kind: str, hint: str = "") -> None:
        """A rectangle from its upper left corner."""
        self._parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
                           f'height="{max(height, 0):.1f}"{_hinted(hint, "rect")}')

    def labels(self, x: float, entries: Sequence[tuple[float, str, str]], gap: float = 13) -> list[float]:
        """Labels ``(y, words, class)`` in a column at ``x``, moved apart until none lies on another; gives where each
        came to lie."""
        order = sorted(range(len(entries)), key=lambda i: entries[i])
        places = [entries[i][0] for i in order]
        for i in range(1, len(places)):
            places[i] = max(places[i], places[i - 1] + gap)
        lowest = self.bottom + 4.0
        for i in reversed(range(len(places))):
            places[i] = lowest = min(places[i], lowest)
            lowest -= gap
        for y, i in zip(places, order, strict=True):
            self.say(x, y + 4, entries[i][1], f"{entries[i][2]} small")
        return [place for _, place in sorted(zip(order, places, strict=True))]

    def legend(self, entries: Sequence[tuple[str, str]], y: float, mark: str = "dot") -> float:
        """``(class, words)`` in rows from the left; where the next row would begin."""
        x = 6.0
        for kind, words in entries:
            room = 28 + 6.9 * len(words)
            if x + room > self.width and x > 6:
                x, y = 6.0, y + 18
            if mark == "dot":
                self.dot(x + 5, y - 4, kind, radius=4)
            else:
                self.box(x, y - 10, 12, 12, kind)
            self.say(x + 17, y, words, "small")
            x += room
        return y + 18

    def text(self, alone: bool = False) -> str:
        """The SVG; ``alone``: with the style of both themes, for a file of its own."""
        style = (f"<style>{style_alone()}</style><rect width='100%' height='100%' fill='var(--ground)'/>"
                 if alone else "")
        return (f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" aria-label="{escape(self.label)}">{style}'
                + "\n".join(self._parts) + "</svg>\n")


def style_alone() -> str:
    """What a chart in a file of its own needs: the theme is that of the reader's system."""
    return (f":root{{{variables(LIGHT)}}}@media(prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}" + STYLE)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _hinted(hint: str, name: str) -> str:
    return f"><title>{escape(hint)}</title></{name}>" if hint else "/>"
