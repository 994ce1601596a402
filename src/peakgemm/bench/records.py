"""The JSON that every command writes: one versioned schema, documented in docs/records.md."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import InvalidValue, MissingComponent
from ..runtime.compile import nvrtc_version
from ..runtime.device import Gpu
from ..selection.profile_file import dumps
from ..version import __version__

SCHEMA = 1


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions that a figure depends on."""
    found = {"peakgemm": __version__, "python": platform.python_version()}
    for package in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        found["nvrtc"] = nvrtc_version()
    except MissingComponent as error:
        found["nvrtc"] = str(error)
    return {**found, **(extra or {})}


def record(gpu: Gpu | None, arch: str, runs: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A complete record. One run lies at the top level (``shape``, ``rungs``), several under ``runs``."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": gpu.to_json() if gpu else None,
        "arch": arch,
        "environment": environment(more.pop("versions", None)),
        **more,
    }
    return {**head, **runs[0]} if len(runs) == 1 else {**head, "runs": list(runs)}


def command() -> str:
    """What was run, as one would type it elsewhere: absolute paths by their last part."""
    program = Path(sys.argv[0])
    name = f"python tools/{program.name}" if program.parent.name == "tools" else "peakgemm"
    return shlex.join([*name.split(), *(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])])


def write(path: Path, data: Mapping[str, Any], by_object: bool = False) -> None:
    """Write whole or not at all: aside first, then renamed in. ``by_object``: a line for each small object, of records
    with thousands of them.

    Raises:
        InvalidValue: the folder is not there or cannot be written.
    """
    text = dumps(json.loads(_dumps(data))) + "\n" if by_object else _dumps(data)
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """As `write`, of a text.

    Raises:
        InvalidValue: the folder is not there or cannot be written.
    """
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidValue(f"cannot write {path} ({error.strerror}); name a file in a folder that exists") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def check_writable(path: Path | None) -> None:
    """Refuse an output file before the work, not after it."""
    if path is not None and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
        raise InvalidValue(f"cannot write {path}; name a file in a folder that exists and can be written")


def _dumps(data: Mapping[str, Any]) -> str:
    return json.dumps(_rounded(data), indent=1, allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    """Six significant digits of what is no whole number: more is noise. JSON has no infinity and no NaN:
    they become ``"inf"`` and ``"nan"``."""
    if isinstance(value, float):
        if not isfinite(value):
            return str(value)
        if value.is_integer():
            return int(value)
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return value


def runs_of(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs of a record, whether it holds one or several."""
    return list(data["runs"]) if "runs" in data else [data]
