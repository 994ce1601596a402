"""What the page of the browser simulator calls, in Pyodide: a request as JSON in, a trace or a refusal as JSON out.

It and what it imports need NumPy alone.
"""

from __future__ import annotations

import json
import re
from typing import Any

from peakgemm.errors import InvalidValue, PeakgemmError
from peakgemm.tools.explore.kernels import Launch, own_trace
from peakgemm.tools.simulator.front.arguments import argument

MAX_STEPS = 20_000_000  # what a reader may ask for at most; the page says so
MAX_SECONDS = 300.0
MAX_MEMORY = 256 << 20  # bytes of one argument
_LINE = re.compile(r"PTX line (\d+)|^(?:line |PTX:?)(\d+)|\bline (\d+)")


def answer(request: str) -> str:
    """Run what ``request`` asks for: ``ptx``, ``entry``, ``grid``, ``block``, ``args`` (words as of the command line),
    ``shared``, ``arch``, ``max_steps``, ``max_seconds``, ``name``, ``label``.

    Gives ``{"trace": ...}``, or ``{"error": message, "line": PTX line or null}``. Never raises.
    """
    try:
        return json.dumps({"trace": _traced(json.loads(request))}, separators=(",", ":"), allow_nan=False)
    except PeakgemmError as error:
        message = str(error)
    except MemoryError:
        message = "the run needs more memory than the browser gives; make grid or arrays smaller"
    except RecursionError:
        message = "the PTX is nested too deep to be read"
    match = _LINE.search(message)
    return json.dumps({"error": message, "line": int(next(one for one in match.groups() if one)) if match else None})


def _traced(asked: dict[str, Any]) -> dict[str, Any]:
    text = str(asked["ptx"])
    if not re.search(r"^\s*\.version\b", text, re.M):
        raise InvalidValue("this is no PTX: it has no .version; paste what nvcc -ptx, NVRTC or Triton writes, from its "
                           "first line")
    args = [argument(word, number, MAX_MEMORY) for number, word in enumerate(asked["args"])]
    launch = Launch(text, _triple("grid", asked["grid"]), _triple("block", asked["block"]), args,
                    asked.get("entry") or None, int(asked.get("shared") or 0), asked.get("arch") or "sm_90",
                    max_steps=min(int(asked["max_steps"]), MAX_STEPS),
                    max_seconds=min(float(asked["max_seconds"]), MAX_SECONDS))
    return own_trace(launch, str(asked.get("name") or "own"), str(asked.get("label") or "your kernel"))


def _triple(name: str, text: str) -> list[int]:
    if not re.fullmatch(r"\s*\d{1,10}(\s*x\s*\d{1,10}){0,2}\s*", text):
        raise InvalidValue(f"{name} {text!r} is not X, XxY or XxYxZ, such as 4x4")
    return [int(one) for one in text.split("x")]
