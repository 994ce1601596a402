"""What the page of the browser simulator calls, in Pyodide: a request as JSON in, a trace or a refusal as JSON out.

It and what it imports need NumPy alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from peakgemm.errors import InvalidValue, PeakgemmError
from peakgemm.tools.bench.errors import bound, errors
from peakgemm.tools.explore.kernels import Launch, own_trace
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.front.arguments import argument

MAX_STEPS = 20_000_000  # what a reader may ask for at most; the page says so
MAX_SECONDS = 300.0
MAX_MEMORY = 256 << 20  # bytes of one argument
_LINE = re.compile(r"PTX line (\d+)|^(?:line |PTX:?)(\d+)|\bline (\d+)")


def answer(request: str) -> str:
    """Run what ``request`` asks for: ``ptx``, ``entry``, ``grid``, ``block``, ``args`` (words as of the command line),
    ``shared``, ``arch``, ``max_steps``, ``max_seconds``, ``name``, ``label``; of an exercise also ``goal``, the PTX of
    its rung, and ``counters``, those which may not exceed the rung's.

    Gives ``{"trace": ...}``, of an exercise with ``findings``, or ``{"error": message, "line": PTX line or null}``.
    Never raises.
    """
    try:
        return json.dumps(_answered(json.loads(request)), separators=(",", ":"), allow_nan=False)
    except PeakgemmError as error:
        message = str(error)
    except MemoryError:
        message = "the run needs more memory than the browser gives; make grid or arrays smaller"
    except RecursionError:
        message = "the PTX is nested too deep to be read"
    match = _LINE.search(message)
    return json.dumps({"error": message, "line": int(next(one for one in match.groups() if one)) if match else None})


def _answered(asked: dict[str, Any]) -> dict[str, Any]:
    text = str(asked["ptx"])
    if not re.search(r"^\s*\.version\b", text, re.M):
        raise InvalidValue("this is no PTX: it has no .version; paste what nvcc -ptx, NVRTC or Triton writes, from its "
                           "first line")
    args = [argument(word, number, MAX_MEMORY) for number, word in enumerate(asked["args"])]
    launch = Launch(text, _triple("grid", asked["grid"]), _triple("block", asked["block"]), args,
                    asked.get("entry") or None, int(asked.get("shared") or 0), asked.get("arch") or "sm_90",
                    max_steps=min(int(asked["max_steps"]), MAX_STEPS),
                    max_seconds=min(float(asked["max_seconds"]), MAX_SECONDS))
    trace = own_trace(launch, str(asked.get("name") or "own"), str(asked.get("label") or "your kernel"))
    return {"trace": trace, "findings": list(_findings(asked, launch, trace))} if "goal" in asked else {"trace": trace}


def _findings(asked: dict[str, Any], launch: Launch, trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each goal of an exercise that its aligned compilation can meet: whether it does, and what was found."""
    clean = not trace["faults"] and not trace["stopped"]
    yield {"goal": "no fault", "met": clean, "said": "none" if clean else "see below"}
    a, b, c = launch.args[:3]
    error, most = errors(a, b, [c])[0], bound(a.shape[1])
    yield {"goal": "right result", "met": error <= most,
           "said": f"largest error {error:.3g} eps |A||B|, at most {most:g}"}
    wanted = run(asked["goal"], grid=launch.grid, block=launch.block, args=launch.args, arch=launch.arch,
                 shared_bytes=launch.shared_bytes).counters
    for name in asked["counters"]:
        count, at = trace["counters"][name], {"shared_wavefronts": 1, "global_sectors": 3}.get(name)
        said = f"{count:,}, at most {wanted[name]:,}"
        if count > wanted[name] and at:
            worst = max(filter(None, trace["code"]), key=lambda one: one["n"][at] - one["n"][at + 1])
            file, line = worst.get("at", (None, worst["ptx"]))
            where = "PTX" if file is None else trace["files"][file]["name"]
            said += f"; {where} line {line} has {worst['n'][at]:,} where {worst['n'][at + 1]:,} would do"
        yield {"goal": name.replace("_", " "), "met": count <= wanted[name], "said": said}


def _triple(name: str, text: str) -> list[int]:
    if not re.fullmatch(r"\s*\d{1,10}(\s*x\s*\d{1,10}){0,2}\s*", text):
        raise InvalidValue(f"{name} {text!r} is not X, XxY or XxYxZ, such as 4x4")
    return [int(one) for one in text.split("x")]
