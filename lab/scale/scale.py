"""The scale suite: predictions for any number of GPUs, and measurements where they are there.

Measurements run in processes of their own: one for host arrays, and a rank for each GPU. Each part of them is tried by
itself, its error is in the record, and a process that dies or hangs ends the others.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from lab.scale import lost as scale_lost
from lab.scale.host_model import Bus, host_us
from lab.scale.predict import Case, cases, pays_from, predicted
from peakgemm.errors import InvalidValue
from peakgemm.integrations.overlap import Link
from peakgemm.problem import Problem
from peakgemm.runtime.device import Gpu
from peakgemm.selection.choose import product_us

DEFAULT = "NVIDIA H100 80GB HBM3"
# After which what is still running is ended: host arrays alone, beside ranks, and ranks.
HOST_SECONDS, HOST_BESIDE_SECONDS, RANKS_SECONDS = 110, 75, 100


def links(name: str, path: Path | None) -> tuple[Link, Bus]:
    """The numbers of a GPU's links: of ``path``, else those that are shipped, of an H100 where ``name`` has none.

    Raises:
        InvalidValue: no such file, or not of that form.
    """
    place = path or Path(__file__).with_name("links.json")
    try:
        known = json.loads(place.read_text(encoding="utf-8"))
        found = known if "link" in known else known.get(name, known.get(DEFAULT))
        return Link(**found["link"]), Bus(**found["bus"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidValue(f"--links {place} is no file of links ({error}); it holds "
                           '{"link": {"copy_us", "copy_gbs", "collective_us", "collective_gbs", "direct_us", '
                           '"direct_gbs", "own_gbs"}, "bus": {"in_gbs", "out_gbs", "all_gbs"}}, as a record of this '
                           'suite does') from None


def modelled(gpu: Gpu) -> Any:
    """One GPU's times by the cost models."""
    def us(m: int, n: int, k: int, precision: str) -> float:
        return product_us(Problem.contiguous(m, n, k), gpu.arch, gpu.sm_count, gpu.name, precision)
    return us


def predictions(gpu: Gpu, count: int, precisions: Sequence[str], link: Link, bus: Bus, sizes: Sequence[int],
                quick: bool = False, time_of: Any = None) -> dict[str, Any]:
    """What ``count`` GPUs like ``gpu`` should take; ``time_of``: one GPU's measured times, None: the cost models'."""
    us = time_of or modelled(gpu)
    rows = [predicted(case, count, us, link) for case in cases(count, precisions, quick)] if count > 1 else []
    host = [{"size": size, "precision": precision, "gpus": gpus,
             "predicted_ms": host_us(size, gpus, us(size, size, size, precision), bus) / 1e3}
            for precision in precisions for size in sizes for gpus in dict.fromkeys((1, count))]
    return {"products": rows, "host": host, "times": "measured" if time_of else "cost models",
            "overlap_pays_from_rows": {precision: pays_from(rows, precision) for precision in precisions},
            "link": link.to_json(), "bus": bus._asdict()}


def measure_host(count: int, precisions: Sequence[str], sizes: Sequence[int], seconds: float,
                 probe: bool = True) -> dict[str, Any]:
    """Host arrays on one GPU and on ``count``, in a process of their own."""
    asked = {"gpus": count, "precisions": list(precisions), "sizes": list(sizes), "probe": probe,
             "seconds": seconds - 10}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "host.json")
        place.write_text(json.dumps(asked))
        errors = run([[sys.executable, "-m", "lab.scale.host", str(place)]], [{}], seconds)
        return _answer(place.with_suffix(".out"), errors)


def measure_ranks(count: int, precisions: Sequence[str], quick: bool, seconds: float) -> dict[str, Any]:
    """Products of ``count`` ranks, one a GPU, and what they predict from one GPU's times before they begin."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "ranks.json")
        place.write_text(json.dumps({"gpus": count, "precisions": list(precisions), "quick": quick,
                                     "seconds": seconds - 15}))
        commands = [[sys.executable, "-m", "lab.scale.rank", str(place)] for _ in range(count)]
        errors = run(commands, ranks_of(count), seconds)
        return _answer(place.with_suffix(".out"), errors)


def measure_lost(count: int) -> list[dict[str, Any]]:
    """What ranks say of one that ends in the middle of a run, and after how long: see `scale_lost.watched`."""
    found = [scale_lost.watched(way, ranks_of(count)) for way in scale_lost.WAYS]
    for each in found:
        if each["hung"]:
            each["error"] = f"a rank hung for {each['after_s']} s after another one had ended"
    return found


def ranks_of(count: int) -> list[dict[str, str]]:
    """The environments of processes that are ranks on this host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count),
              # Multicast through NVLink is left as the machine has it: off where the user has not asked for it.
              "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0"),
              "TORCH_SYMM_MEM_DISABLE_MULTICAST": os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def run(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], seconds: float) -> list[str]:
    """Run processes together until all have ended, one has failed (the others are then ended), or for ``seconds``.

    Returns:
        What went wrong, a line each.
    """
    logs = [tempfile.TemporaryFile("w+") for _ in commands]  # noqa: SIM115  closed below
    running = [subprocess.Popen(list(command), env={**os.environ, **more}, stderr=log, stdout=log, text=True)
               for command, more, log in zip(commands, environments, logs, strict=True)]
    errors, end = [], time.monotonic() + seconds
    try:
        while any(process.poll() is None for process in running):
            failed = [i for i, process in enumerate(running) if process.poll()]
            if failed or time.monotonic() > end:
                if not failed:
                    errors.append(f"not done after {seconds:.0f} s: ended")
                time.sleep(1 if failed else 0)  # the others may have something to say
                break
            time.sleep(0.05)
        for i, process in enumerate(running):
            if process.poll():
                logs[i].seek(0)
                errors.append(f"process {i} ended with {process.returncode}: {logs[i].read()[-1500:]}")
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
        for log in logs:
            log.close()
    return errors


def _answer(place: Path, errors: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if place.exists():
        try:
            found = json.loads(place.read_text())
        except ValueError:
            errors = [*errors, "its answer was cut short"]
    if errors:
        found["errors"] = list(errors)
    return found


def probed(host: Mapping[str, Any], bus: Bus) -> list[dict[str, Any]]:
    """What the model says of host arrays with the rates measured in the same run, and the times of products without
    copies; with ``bus`` where they were not measured."""
    bus = Bus(**host["bus"]) if "bus" in host else bus
    return [{"size": row["size"], "precision": row["precision"], "gpus": row["gpus"],
             "predicted_ms": host_us(row["size"], row["gpus"], 1e3 * row["in_core_ms"], bus) / 1e3}
            for row in host.get("rows", ())]


def compared(forecast: Mapping[str, Any], measured: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    """How far the prediction was off: median and 90th percentile of ``|predicted / measured - 1|``."""
    offs = []
    times = {Case(**{name: row[name] for name in Case._fields}): row["ms"] for row in measured.get("products", ())
             if "ms" in row}
    for row in forecast["products"]:
        ms = times.get(Case(**{name: row[name] for name in Case._fields}))
        if ms:
            offs.append(abs(row["predicted_ms"] / ms - 1))
    hosts = {(row["size"], row["precision"], row["gpus"]): row["ms"] for row in host.get("rows", ()) if "ms" in row}
    host_offs = [abs(row["predicted_ms"] / hosts[key] - 1) for row in forecast["host"]
                 if (key := (row["size"], row["precision"], row["gpus"])) in hosts]
    return {name: {"rows": len(each), "median": median(each), "p90": quantiles(each, n=10)[-1] if len(each) > 1 else
                   each[0]} for name, each in (("products", offs), ("host", host_offs)) if each}
