"""The ladder's charts: speed against size, the climb at one size, the roofline, the heat map of tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import log2
from typing import Any

from ..bench.columns import rung_name
from .svg import HEAT, SERIES, Chart

Row = Mapping[str, Any]
Points = list[tuple[float, float]]
Line = tuple[str, str, str, Points]  # label, the same of a narrow chart, class, points

NARROW = 480  # below this width labels are short


def rung_class(number: int) -> str:
    """A colour for neighbours on the ladder: no shared memory, with it, register tiles, buffers, copies, tensor."""
    ends = (2, 5, 9, 12, 15)
    return f"s{(7, 4, 2, 0, 3, 1)[sum(number > end for end in ends)]}"


def speed(lines: Sequence[Line], peak: float | None, title: str, x_title: str, width: int) -> Chart:
    """TFLOPS against size, both logarithmic, each line with its label at its right end."""
    narrow = width < NARROW
    chart = Chart(width, 460 if narrow else 480, title, (30, 92 if narrow else 168, 44, 38))
    xs = sorted({x for *_, points in lines for x, _ in points})
    values = [y for *_, points in lines for _, y in points] + ([peak] if peak else [])
    x = chart.x_scale(xs[0], xs[-1] if len(xs) > 1 else 2 * xs[0], log=True)
    y = chart.y_scale(min(values) * 0.85, max(values) * 1.15, log=True)
    powers = [size for size in xs if log2(size).is_integer()] or xs
    chart.x_axis(x, x_title, powers)
    chart.y_axis(y, "TFLOPS", text=lambda v: f"{v:g}")
    if peak:
        chart.line([(chart.left, y(peak)), (chart.right, y(peak))], "ink thin dash", f"FP32 peak {peak:.1f} TFLOPS")
        chart.say(chart.left + 4, y(peak) - 4, f"FP32 peak {peak:.1f}", "soft small")
    ends = []
    for long, short, kind, points in lines:
        label = short if narrow else long
        hint = f"{label}: " + ", ".join(f"{size:g}: {value:.3g}" for size, value in points)
        chart.line([(x(a), y(b)) for a, b in points], kind, hint)
        for a, b in points:
            chart.dot(x(a), y(b), kind.split()[0], f"{label}, {a:g}: {b:.3g} TFLOPS", 2.5)
        ends.append((y(points[-1][1]), label, f"{kind.split()[0]} {'bold' * ('bold' in kind)}"))
    chart.labels(chart.right + 8, ends)
    return chart


def climb(rungs: Sequence[Row], asides: Mapping[int, str], cublas: float, peak: float, title: str,
          width: int) -> Chart:
    """The climb at one size on a linear axis: a line through the rungs of the main line, rings for side branches.

    ``asides``: why to look at a rung that is off the main line, by number.
    """
    step = 21
    chart = Chart(width, 108 + step * len(rungs), title, (64, 50, 44, 152 if width < NARROW else 176))
    chart.legend([("s0", "main line"), ("ring s5", "side branch")], 16)
    x = chart.x_scale(0, 1.04 * max(peak, *(row["tflops"] for row in rungs)))
    chart.x_axis(x, "TFLOPS", text=lambda v: f"{v:g}")
    for value, words, kind, above in ((cublas, f"cuBLAS {cublas:.1f}", "s6", 56),
                                      (peak, f"peak {peak:.1f}", "ink", 42)):
        chart.line([(x(value), above + 4), (x(value), chart.bottom)], f"{kind} thin dash", words)
        chart.say(x(value) - 4, above, words, f"{kind if kind != 'ink' else 'soft'} small end")
    places = [chart.top + 14.0 + step * place for place in range(len(rungs))]
    chart.line([(x(row["tflops"]), y) for row, y in zip(rungs, places, strict=True)
                if row["number"] not in asides], "s0")
    for row, y in zip(rungs, places, strict=True):
        label, value, aside = rung_name(row), row["tflops"], asides.get(row["number"], "")
        chart.say(18 if aside else 6, y + 4, label, "soft" if aside else "bold")
        hint = f"{label}: {value:.2f} TFLOPS, {row['ratio_to_cublas']:.3f} of cuBLAS in the same run"
        chart.dot(x(value), y, "ring s5" if aside else "s0", f"{hint}. Side branch: {aside}" if aside else hint, 5)
        chart.say(width - 6, y + 4, f"{value:.1f}" if value >= 10 else f"{value:.2f}", "small end")
    return chart


def ratios(rows: Sequence[Row], group: Callable[[Row], str], title: str, width: int) -> Chart:
    """A line a case, in groups: ratio to cuBLAS with its 10th to 90th percentile, contenders as rings."""
    narrow = width < NARROW
    groups = [(name, list(own)) for name, own in groupby(rows, key=group)]
    names = sorted({name for row in rows for name, peer in row.get("peers", {}).items()
                    if "ratio_to_cublas" in peer})
    step, head = 15, 24
    height = 40 + sum(head + step * len(own) for _, own in groups) + 46 + 20 * bool(names)
    chart = Chart(width, height, title, (14 + 20 * bool(names), 46, 46, 138 if narrow else 190))
    values = [v for row in rows for v in (*row["ratio_spread"], row["ratio_to_cublas"])]
    values += [row["peers"][name]["ratio_to_cublas"] for row in rows for name in names
               if "ratio_to_cublas" in row.get("peers", {}).get(name, {})]
    x = chart.x_scale(min(0.9, *values) * 0.97, max(1.25, *values) * 1.05, log=True)
    nice = [v for v in (0.2, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 20) if x.low <= v <= x.high]
    chart.x_axis(x, "time of cuBLAS FP32 over ours, logarithmic", nice)
    chart.line([(x(1), chart.top), (x(1), chart.bottom)], "ink thin")
    if names:
        chart.legend([(f"ring s{3 + i}", name) for i, name in enumerate(names)], 16)
    y = chart.top + 2.0
    for suite, own in groups:
        y += head
        chart.say(6, y - 6, suite, "bold")
        for row in own:
            ratio, (low, high) = row["ratio_to_cublas"], row["ratio_spread"]
            kind, said = "s2" if ratio >= 1 else "s6", str(row["name"])
            if len(said) > (21 if narrow else 29):
                said = said[:20 if narrow else 28] + "…"
            chart.say(6, y + 8, said, "soft small")
            hint = f"{row['name']}: {ratio:.3f}, 10-90 % {low:.3f}-{high:.3f}" + (
                f", {row['tflops']:.2f} TFLOPS" if "tflops" in row else "")
            chart.line([(x(low), y + 4), (x(high), y + 4)], f"{kind}", hint)
            chart.dot(x(ratio), y + 4, kind, hint, 3.4)
            for i, name in enumerate(names):
                theirs = row.get("peers", {}).get(name, {}).get("ratio_to_cublas")
                if theirs:
                    chart.dot(x(theirs), y + 4, f"ring s{3 + i}", f"{row['name']}: {name} {theirs:.3f}", 3.2)
            chart.say(chart.right + 6, y + 8, f"{ratio:.2f}", "small")
            y += step
    return chart


def roofline(points: Sequence[tuple[str, str, float, float | None, float]], bandwidth_gbs: float, peak: float,
             title: str, width: int) -> Chart:
    """TFLOPS over FLOP a byte: full marks by the bytes counted at DRAM, rings by those that a tiling asks for.

    ``points`` holds (label, class, FLOP a byte asked, FLOP a byte of DRAM or None, TFLOPS).
    """
    narrow = width < NARROW
    chart = Chart(width, 480, title, (72 if narrow else 54, 52 if narrow else 172, 44, 40))
    xs = [v for _, _, asked, dram, _ in points for v in (asked, dram) if v]
    low, high = min(xs) * 0.7, max(*xs, peak * 1000 / bandwidth_gbs) * 2.2
    x = chart.x_scale(low, high, log=True)
    y = chart.y_scale(min(t for *_, t in points) * 0.6, max(peak, *(t for *_, t in points)) * 1.5, log=True)
    chart.x_axis(x, "FLOP a byte, logarithmic")
    chart.y_axis(y, "", text=lambda v: f"{v:g}")
    chart.say(4, chart.top - 12, "TFLOPS", "soft")
    knee = peak * 1000 / bandwidth_gbs
    start = max(low, y.low * 1000 / bandwidth_gbs)
    chart.line([(x(start), y(start * bandwidth_gbs / 1000)), (x(knee), y(peak)), (chart.right, y(peak))], "ink",
               f"{bandwidth_gbs:g} GB/s, then {peak:.1f} TFLOPS")
    chart.say(x(knee) + 6, y(peak) - 6, f"FP32 peak {peak:.1f}", "soft small")
    said = f"{bandwidth_gbs:.0f} GB/s"
    chart.say(x(2 * start) + 8, y(2 * start * bandwidth_gbs / 1000) + 14, said, "soft small halo")
    for label, kind, asked, dram, tflops in points:
        if dram:
            chart.line([(x(asked), y(tflops)), (x(dram), y(tflops))], f"{kind} thin dot")
            chart.dot(x(dram), y(tflops), kind, f"{label}: {tflops:.2f} TFLOPS at {dram:.3g} FLOP a byte of DRAM", 4)
        chart.dot(x(asked), y(tflops), f"ring {kind}",
                  f"{label}: {tflops:.2f} TFLOPS at {asked:.3g} FLOP a byte asked", 4)
    ends = chart.labels(chart.right + 30, [(y(tflops), label.split()[0] if narrow else label, kind)
                                           for label, kind, _, _, tflops in points])
    for end, (_, kind, asked, _, tflops) in zip(ends, points, strict=True):
        chart.line([(x(asked) + 5, y(tflops)), (chart.right + 4, y(tflops)), (chart.right + 26, end)],
                   f"{kind} thin faint")
    chart.legend([("s0", "by counted DRAM bytes"), ("ring s0", "by bytes that the tiling asks for")], 16)
    return chart


def heat(rows: Sequence[Row], title: str, width: int) -> Chart:
    """Every tile measured: block tiles down, thread tiles across, a cell split among its BK and buffers."""
    narrow = width < NARROW
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        c = row["config"]
        cells.setdefault((f"{c['bm']}x{c['bn']}", f"{c['tm']}x{c['tn']}"), []).append(row)

    def area(name: str) -> tuple[int, int]:
        a, b = map(int, name.split("x"))
        return a * b, a

    down = sorted({key[0] for key in cells}, key=area)
    across = sorted({key[1] for key in cells}, key=area)
    values = [row["tflops"] for row in rows]
    low, high = min(values), max(values)
    tall = {name: max(1, max(len(cells.get((name, a), ())) for a in across)) for name in down}
    unit = 20
    chart = Chart(width, 74 + sum(unit * count + 4 for count in tall.values()) + 34, title,
                  (64, 6, 30, 60 if narrow else 84))
    chart.say(6, 20, "TFLOPS", "bold")
    spread = (chart.right - 70) / len(HEAT)
    for i in range(len(HEAT)):
        chart.box(66 + spread * i, 8, spread, 16, f"h{i}")
        chart.say(66 + spread * (i + 0.5), 20, f"{low + (high - low) * (i + 0.5) / len(HEAT):.0f}", f"mid small t{i}")
    chart.say(6, 54, "block", "soft small")
    wide = (chart.right - chart.left) / len(across)
    for i, name in enumerate(across):
        chart.say(chart.left + wide * (i + 0.5), 54, name, "mid small")
    chart.say((chart.left + chart.right) / 2, 40, "results a thread", "soft mid small")
    y = float(chart.top)
    for name in down:
        chart.say(6, y + unit * tall[name] / 2 + 4, name, "small")
        for i, across_name in enumerate(across):
            for j, row in enumerate(sorted(cells.get((name, across_name), ()), key=lambda r: -r["tflops"])):
                level = min(int(len(HEAT) * (row["tflops"] - low) / (high - low or 1)), len(HEAT) - 1)
                c = row["config"]
                double = c["stages"] == 2
                what = f"{c['bk']}{'db' * double}"
                hint = (f"{name}x{c['bk']}, {across_name} a thread, double buffer {'on' if double else 'off'}: "
                        f"{row['tflops']:.1f} TFLOPS, {row['ratio_to_cublas']:.3f} of cuBLAS, {row['registers']} "
                        f"registers, {row['spill_bytes']} bytes spilled")
                chart.box(chart.left + wide * i + 1, y + unit * j + 1, wide - 2, unit - 2, f"h{level}", hint)
                said = f"{row['tflops']:.0f}" if narrow else f"{row['tflops']:.1f} · {what}"
                chart.say(chart.left + wide * (i + 0.5), y + unit * j + 14, said, f"mid small t{level}")
        y += unit * tall[name] + 4
    chart.say(6, y + 18, "In a cell: TFLOPS" + ("." if narrow else " · BK, db with double buffer."), "soft small")
    return chart


def errors(panels: Mapping[str, Mapping[str, Points]], least: Mapping[str, Points], title: str, width: int) -> Chart:
    """Largest error against K, a panel for each kind of data, a line for each contender; dotted: one rounding."""
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    kinds = {name: f"s{i % SERIES}" + (" dash" if i >= SERIES else "") for i, name in enumerate(names)}
    wide = max(1, width // 330) if width >= NARROW else 1
    each, high = width // wide, 230
    rows = -(-len(panels) // wide)
    chart = Chart(width, 60 + 18 * (len(names) * 130 // width + 1) + rows * high, title, (0, 0, 0, 0))
    top = chart.legend([*((kinds[name].split()[0], name) for name in names), ("ink", "one rounding (dotted)")], 18)
    for place, (family, lines) in enumerate(panels.items()):
        left, above = each * (place % wide), top + high * (place // wide)
        part = Chart(each, high, "", (34, 14, 44, 42))
        part.left, part.right = int(left) + 42, int(left) + each - 22
        part.top, part.bottom = int(above) + 34, int(above) + high - 44
        points = [point for line in (*lines.values(), least.get(family, [])) for point in line]
        x = part.x_scale(min(k for k, _ in points), max(k for k, _ in points) * 1.0001, log=True)
        y = part.y_scale(min(e for _, e in points) * 0.8, max(e for _, e in points) * 1.25, log=True)
        part._parts = chart._parts
        part.x_axis(x, "K", sorted({k for k, _ in points}))
        part.y_axis(y, "", y.ticks(5))
        part.say(left + 6, above + 22, family, "bold")
        part.line([(x(k), y(e)) for k, e in least.get(family, [])], "ink thin dot",
                  "what rounding the exact result once errs by")
        for name, line in lines.items():
            said = ", ".join(f"K {k:g}: {e:.3g}" for k, e in line)
            part.line([(x(k), y(e)) for k, e in line], kinds[name], f"{name}: {said}")
    return chart
