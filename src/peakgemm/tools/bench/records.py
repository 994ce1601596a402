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

from ...errors import InvalidValue, MissingComponent, PeakgemmError
from ...kernels import shipped
from ...runtime.device import Gpu
from ...runtime.nvrtc import nvrtc_version
from ...version import __version__

SCHEMA = 1


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions that a figure depends on; ``cubins``: the NVRTC that compiled the library's kernels ahead, if any."""
    versions = {"peakgemm": __version__, "python": platform.python_version()}
    for package in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        versions["nvrtc"] = nvrtc_version()
    except MissingComponent as error:
        versions["nvrtc"] = str(error)
    if ahead := sorted({index.nvrtc for index in map(shipped.index, shipped.FOLDER.glob("*.cubins")) if index.cubins}):
        versions["cubins"] = ", ".join(ahead)
    return {**versions, **(extra or {})}


def record(gpu: Gpu | None, arch: str, runs: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A complete record. One run lies at the top level (``shape``, ``rungs``), several under ``runs``: there what all
    rows of a kernel share lies once, in ``kernels`` (`runs_of` puts it back)."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": gpu.to_json() if gpu else None,
        "arch": arch,
        "environment": environment(more.pop("versions", None)),
        **more,
    }
    return {**head, **together(runs)}


def together(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The runs as a record holds them."""
    if len(runs) == 1:
        return runs[0]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for row in run["rungs"]:
            groups.setdefault(_kernel(row), []).append(row)
    common = [{name: value for name, value in rows[0].items() if all(name in r and r[name] == value for r in rows)}
              for rows in groups.values()]
    place = {key: i for i, key in enumerate(groups)}

    def own(row: Mapping[str, Any]) -> dict[str, Any]:
        i = place[_kernel(row)]
        return {"kernel": i, **{name: value for name, value in row.items() if name not in common[i]}}

    return {"kernels": common, "runs": [{**run, "rungs": [own(row) for row in run["rungs"]]} for run in runs]}


def _kernel(row: Mapping[str, Any]) -> str:
    return repr([row.get(name) for name in ("number", "config_name", "path")])


def first_line(error: Exception) -> str:
    """What went wrong, in a line: the message of an error of ours, of others the class before it."""
    lines = str(error).strip().splitlines() or ["no message"]
    return lines[0] if isinstance(error, PeakgemmError) else f"{type(error).__name__}: {lines[0]}"


def command() -> str:
    """What was run, as one would type it elsewhere: absolute paths by their last part."""
    program = Path(sys.argv[0])
    parts = program.with_suffix("").parts
    name = "peakgemm"
    if "lab" in parts:
        name = "python -m " + ".".join(parts[parts.index("lab"):]).removesuffix(".__main__")
    return shlex.join([*name.split(), *(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])])


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write whole or not at all: aside first, then renamed in.

    Raises:
        InvalidValue: the folder is not there or cannot be written.
    """
    write_text(path, _by_row(_rounded(data)) + "\n")


def write_text(path: Path, text: str) -> None:
    """As `write`, of a text.

    Raises:
        InvalidValue: the folder is not there or cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """As `write`, of bytes. Symbolic links are followed; what is no regular file, a FIFO or a terminal, is written to.

    Raises:
        InvalidValue: the folder is not there or cannot be written.
    """
    try:
        if not replaceable(path):
            path.write_bytes(content)
            return
        path = Path(os.path.realpath(path))
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidValue(f"cannot write {path} ({error.strerror}); name a file in a folder that exists") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def replaceable(path: Path) -> bool:
    """Whether a file is there or can be, of which a later record takes the place: not a FIFO, nor a terminal."""
    return not os.path.exists(path) or os.path.isfile(path)


def check_writable(path: Path | None, *others: Path | str | None) -> None:
    """Refuse an output file before the work, not after it; and one that is among ``others``, the command's inputs and
    other outputs.

    Raises:
        InvalidValue: it cannot be written, or is one of those.
    """
    if path is None:
        return
    real = Path(os.path.realpath(path))
    able = (not os.path.isdir(real) and os.path.isdir(real.parent) and os.access(real.parent, os.W_OK)
            if replaceable(path) else os.access(path, os.W_OK) and not os.path.isdir(path))
    if not able:
        raise InvalidValue(f"cannot write {path}; name a file in a folder that exists and can be written")
    for other in others:
        if other is not None and (os.path.realpath(other) == str(real) or _same(path, other)):
            raise InvalidValue(f"cannot write {path}: it is {other}, which the command reads or writes; name another "
                               "file")


def _same(path: Path, other: Path | str) -> bool:
    try:
        return replaceable(path) and os.path.samefile(path, other)
    except (OSError, ValueError):  # one is not there
        return False


def _by_row(value: Any) -> str:
    """JSON with a row a line: an object that holds a list of objects has a line for each field, the list one for each
    object."""
    if isinstance(value, dict) and any(map(_is_rows, value.values())):
        return "{\n" + ",\n".join(f"{json.dumps(name)}:{_by_row(inner)}" for name, inner in value.items()) + "\n}"
    if _is_rows(value):
        return "[\n" + ",\n".join(map(_by_row, value)) + "\n]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(inner, dict) for inner in value)


def _rounded(value: Any, digits: int = 6) -> Any:
    """Six significant digits of what is no whole number, five of raw samples: more is noise. JSON has no infinity and
    no NaN: they become ``"inf"`` and ``"nan"``."""
    if isinstance(value, float):
        if not isfinite(value):
            return str(value)
        if value.is_integer():
            return int(value)
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner, 5 if str(key).startswith("samples") else digits) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner, digits) for inner in value]
    return value


def runs_of(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs of a record, whether it holds one or several, with all fields in each row."""
    if "kernels" not in data:
        return list(data.get("runs", [data]))
    return [{**run, "rungs": [data["kernels"][row["kernel"]] | {name: row[name] for name in row if name != "kernel"}
                              for row in run["rungs"]]} for run in data["runs"]]
