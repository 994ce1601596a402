"""Records read for a report: refused where they are not what they say, told apart by what their rows hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InvalidValue
from ..accuracy import cases
from ..bench.records import SCHEMA, runs_of

Row = Mapping[str, Any]
Record = Mapping[str, Any]

HEAD = ("schema", "command", "time", "device", "arch", "environment")
# Of a kind: the field that tells its rows, and what each row must have. In order: the first that fits.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "counters": ("ncu", ("number", "name", "ncu")),
    "bench": ("suite", ("suite", "name")),
    "accuracy": ("contender", ("test", "family", "shape", "contender", "verdict")),
    "workload": ("workload", ("workload", "products", "unit", "ms", "speedup", "from_fp64", "from_fp32")),
    "programs": ("program", ("program", "products", "unit", "ms", "speedup", "from_fp32")),
    "bill": ("ffma, %", ("kernel",)),
    "ladder": ("ffma_fraction", ("number", "name", "config", "registers", "spill_bytes", "shared_bytes", "threads",
                                 "blocks_per_sm", "limited_by", "bytes_per_flop", "loop_instructions", "ffma_fraction",
                                 "bank_ceiling")),
}
MEASURED = ("tflops", "cublas_tflops", "ratio_to_cublas", "ratio_spread")  # all of them, or none


@dataclass(frozen=True)
class Source:
    """A record with the file that it comes from and its kind."""

    path: Path
    kind: str
    record: Record

    @property
    def rows(self) -> list[Row]:
        """All rows, of every run."""
        return [row for _, rows in self.runs() for row in rows]

    def runs(self) -> Iterator[tuple[tuple[int, ...], list[Row]]]:
        """(shape, rows) of every run; a shape of ``()`` where the rows have their own."""
        for run in runs_of(self.record):
            yield tuple(run.get("shape", ())), rows_of(run)


@dataclass(frozen=True)
class Data:
    """What a report is made from: records of one GPU, by kind."""

    sources: tuple[Source, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> list[Source]:
        """The records of a kind, in the order in which they were given."""
        return [source for source in self.sources if source.kind == kind]

    @property
    def device(self) -> Mapping[str, Any] | None:
        """The GPU, or none where nothing was measured."""
        return next((s.record["device"] for s in self.sources if s.record["device"]), None)


def rows_of(run: Mapping[str, Any]) -> list[Row]:
    """The rows of a run. A case of `peakgemm accuracy` that holds a result for each contender gives a row for each."""
    rows = list(run.get("rungs", ()))
    return list(cases.rows_of({"against": None, **run})) if any("results" in row for row in rows) else rows


def read(path: Path) -> Source | str:
    """One record; or, of a record that no figure shows, the command that wrote it.

    Raises:
        InvalidValue: no JSON, another version of the schema, no rows, or a field that is missing.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise InvalidValue(f"cannot read {path} ({why}); name a record that --json wrote") from None
    except ValueError as error:
        raise InvalidValue(f"{path} is no JSON ({error}); name a record that --json wrote") from None
    if not isinstance(record, dict) or "schema" not in record:
        raise InvalidValue(f"{path} is no record: it has no 'schema'; name a file that a command's --json wrote")
    if record["schema"] != SCHEMA:
        raise InvalidValue(f"{path} is of schema {record['schema']!r}, this peakgemm reads schema {SCHEMA}; write it "
                           f"again with this version, or read it with the peakgemm that wrote it")
    missing = [name for name in HEAD if name not in record]
    if missing:
        raise InvalidValue(f"{path} lacks {', '.join(missing)}; write the record again: {record.get('command', '?')}")
    if "bills" in record:
        record = {**record, "rungs": _bill_rows(record["bills"])}
    if "rungs" not in record and "runs" not in record:
        return str(record["command"])
    rows = [row for run in runs_of(record) for row in rows_of(run)]
    if not rows:
        raise InvalidValue(f"{path} holds no rows: nothing was measured; run again: {record['command']}")
    for name, (mark, wanted) in KINDS.items():
        if any(mark in row for row in rows):
            _check(path, record, rows, wanted)
            return Source(path, "sweep" if name == "ladder" and _is_sweep(record) else name, record)
    return str(record["command"])


def _bill_rows(entries: Sequence[Row]) -> list[Row]:
    """Bills as rows: a kernel's name, and what each part is of its issue slots, in per cent."""
    return [{"kernel": entry["kernel"] if entry["number"] is None else f"{entry['number']:02} {entry['kernel']}",
             **{f"{name}, %": 100 * part for name, part in entry["parts"].items() if part is not None}}
            for entry in entries if "parts" in entry]


def _check(path: Path, record: Record, rows: Sequence[Row], wanted: Sequence[str]) -> None:
    for number, row in enumerate(rows):
        if "refused" in row or "error" in row:
            continue
        missing = [name for name in wanted if name not in row]
        if not missing and row.get("tflops") is not None:
            missing = [name for name in MEASURED if row.get(name) is None and "ncu" not in row]
        if missing:
            raise InvalidValue(f"{path}, row {number}: {', '.join(missing)} missing; a figure of it would be invented. "
                               f"Write the record again: {record['command']}")


def _is_sweep(record: Record) -> bool:
    rows = [row for run in runs_of(record) for row in run["rungs"]]
    numbers = {row.get("number") for row in rows if "refused" not in row}
    return len(rows) > 1 and len(numbers) == 1 and len({json.dumps(r["config"], sort_keys=True) for r in rows}) > 1


def load(paths: Iterable[Path]) -> Data:
    """Read files, and of folders every ``*.json`` within.

    Raises:
        InvalidValue: a file that is no good, no file at all, nothing that a figure shows, or records of several GPUs.
    """
    files: list[Path] = []
    for path in paths:
        within = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not within and (folders := sorted({one.parent for one in path.glob("*/*.json")})):
            raise InvalidValue(f"{path} holds no record, its folders do: give one of {', '.join(map(str, folders))}")
        files += within
    if not files:
        raise InvalidValue("no record to report; name files that --json wrote, or a folder that holds some")
    sources, left_out = list[Source](), dict[str, str]()
    for path in files:
        one = read(path)
        if isinstance(one, str):
            left_out[path.name] = one
        else:
            sources.append(one)
    if not sources:
        what = ", ".join(f"{name} (of {command})" for name, command in left_out.items())
        raise InvalidValue(f"no figure shows any of these: {what}; give a record of ladder, sweep, bench or accuracy")
    _one_gpu(sources)
    return Data(tuple(sources), left_out)


def _one_gpu(sources: Sequence[Source]) -> None:
    names: dict[str, list[str]] = {}
    for source in sources:
        if source.record["device"]:
            names.setdefault(source.record["device"]["name"], []).append(source.path.name)
    if len(names) > 1:
        told = "; ".join(f"{name}: {', '.join(files)}" for name, files in names.items())
        raise InvalidValue(f"records of {len(names)} GPUs ({told}); one page compares what one GPU did: give the "
                           "records of one")


def default_folder(root: Path) -> Path:
    """Of ``results/`` in a checkout the folder with the most records.

    Raises:
        InvalidValue: there is none.
    """
    folders = sorted((root / "results").glob("*/"), key=lambda place: (-len(list(place.glob("*.json"))), place.name))
    if not folders:
        raise InvalidValue(f"{root} has no results/; run this in a checkout, or name records: "
                           "peakgemm report ladder.json -o report.html")
    return folders[0]
