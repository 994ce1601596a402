"""What a measuring process of the scale suite keeps: its answer, written after each part, and how long it may go on."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Answer:
    """A record that grows part by part: what has been measured is there whatever comes after.

    Args:
        place: the file of the process's task; the answer lies beside it. None: kept in memory alone.
        seconds: after which no further part begins.
    """

    def __init__(self, place: Path | None, seconds: float) -> None:
        self.found: dict[str, Any] = {"parts": {}}
        self._place, self._end = place, time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def part(self, name: str, run: Callable[[], Any], least: float = 0.0) -> bool:
        """Run a part; what it raises becomes its error. Left out where fewer than ``least`` seconds are left.

        Returns:
            Whether it ended well.
        """
        start, error = time.monotonic(), ""
        if self.left < least:
            error = f"left out: {self.left:.0f} s left, it wants {least:.0f}"
        else:
            try:
                run()
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"[:600] + "\n" + traceback.format_exc()[-900:]
        took = {"seconds": round(time.monotonic() - start, 2)}
        self.found["parts"][name] = took | ({"error": error} if error else {})
        self.save()
        return not error

    def save(self) -> None:
        """Write the answer, whole or not at all."""
        if self._place is not None:
            aside = self._place.with_suffix(".new")
            aside.write_text(json.dumps(self.found))
            os.replace(aside, self._place.with_suffix(".out"))
