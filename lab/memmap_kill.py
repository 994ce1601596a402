"""A product of files that is killed at random times and resumed: right, and no finished tile computed again.

    python -m lab.memmap_kill --folder /data --gigabytes 54 --kills 5 --json memmap-kill.json

Writes random A and B there, which with C take ``--gigabytes`` of the disk, or as much as can be written in
``--seconds``; runs ``peakgemm multiply``, kills it (SIGKILL) at random times as often as asked, runs it again until it
ends, and checks

- every tile: C x against A (B x) in FP64 for a random vector x of signs, within eps |A| |B| |x|, row by row;
- single elements in FP64, 24 rows by 24 columns, in eps |A| |B|;
- the journal: no tile has two lines; a run finds what the one before had finished, and computes the rest.

A tile that was under way when the kill came has no line yet and is computed again: at most those are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from lab.scale.host import error_of
from peakgemm.calls.request import PRECISIONS
from peakgemm.runtime import device
from peakgemm.tools.bench import records

EPS = 2.0**-23
BLOCK_BYTES = 64 << 20  # written, and read for the check, at a time
SPARE = 0.06            # of the disk, left free
LEAST_BYTES = 12 * 128**2  # matrices of 128 x 128
LIMIT = 50              # largest error of an element, in eps |A| |B|
THREADS = min(16, os.cpu_count() or 1)


def sides(total: int, inner: int | None) -> tuple[int, int]:
    """M = N and K of matrices that take ``total`` bytes together; ``inner``: K, None: K = N."""
    if inner is None:
        n = isqrt(total // 12)
        return n - n % 128, n - n % 128
    n = int(-inner + (inner * inner + total / 4) ** 0.5)  # 4 (2 n k + n^2) = total
    return n - n % 128, inner


def write(path: Path, rows: int, columns: int, seed: int) -> float:
    """A random normal matrix into a ``.npy`` file: pieces of one drawn block, each from a place of its own.

    Returns:
        Seconds.
    """
    start = time.perf_counter()
    x = np.lib.format.open_memmap(path, "w+", np.float32, (rows, columns))
    first = path.stat().st_size - x.nbytes
    drawn = np.random.default_rng(seed).standard_normal(BLOCK_BYTES // 2, np.float32)  # two blocks
    step = max(1, BLOCK_BYTES // (4 * columns))
    places = np.random.default_rng(seed + 1).integers(0, drawn.size - min(step * columns, drawn.size // 2) + 1,
                                                      -(-rows // step))
    del x
    with path.open("rb+") as file:
        def piece(i: int) -> None:
            count = min(step, rows - i * step) * columns
            part = memoryview(np.resize(drawn[places[i]:], count)).cast("B")
            done, at = 0, first + 4 * i * step * columns
            while done < len(part):
                done += os.pwrite(file.fileno(), part[done:], at + done)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(piece, range(len(places))))
    return time.perf_counter() - start


def disk_gbs(folder: Path, seconds: float) -> float:
    """GB/s at which files can be written there, for ``seconds``."""
    block, size, start = np.random.default_rng(0).bytes(BLOCK_BYTES), 0, time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        while time.perf_counter() - start < seconds:
            size += file.write(block)
        os.fsync(file.fileno())
        return size / (time.perf_counter() - start) / 1e9


def journal_of(out: Path) -> list[int]:
    """The tiles that the journal names, a whole line each."""
    path = out.with_name(out.name + ".journal")
    try:
        return [json.loads(line)["tile"] for line in path.read_bytes().split(b"\n")[1:-1]]
    except (OSError, ValueError, KeyError):
        return []


def tiles_of(out: Path) -> int:
    """How many tiles the product has, by its journal; 0: there is none yet."""
    try:
        with out.with_name(out.name + ".journal").open("rb") as file:
            cuts = json.loads(file.readline())["cuts"]
    except (OSError, ValueError, KeyError):
        return 0
    return len(cuts[0]) * len(cuts[1])


def kill(command: list[str], out: Path, until: float, chance: random.Random, end: float) -> dict[str, Any]:
    """Run ``command`` until a share ``until`` of the tiles is finished, and some time on; kill it then.

    Returns:
        What was there after the kill.

    Raises:
        SystemExit: it ended before, with a result or without.
    """
    before, start = journal_of(out), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    tiles = 0
    while process.poll() is None and time.monotonic() < end:
        tiles = tiles_of(out) or tiles  # a product that ends takes its journal with it
        if len(journal_of(out)) >= max(until * max(tiles, 1), len(before) + 1):
            time.sleep(chance.random() * 0.2)
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    code = process.wait()
    after = journal_of(out)
    if code == 0 or (out.exists() and len(after) in (0, tiles)):  # killed when all was done
        sys.exit("The product ended before a kill that was to come, for it is small; raise --gigabytes")
    if code != -signal.SIGKILL:
        sys.exit(f"peakgemm multiply ended with exit code {code}, for the reason above")
    return {"seconds": time.perf_counter() - start, "tiles_before": len(before), "tiles_after": len(after),
            "lines_twice": sum(count > 1 for count in Counter(after).values()), "complete_name": out.exists()}


def check(a: Any, b: Any, c: Any) -> dict[str, float]:
    """Largest ``|C x - A (B x)| / (eps |A| |B| |x|)`` of all rows, and the error of single elements; NaN is infinite.
    """
    x = np.random.default_rng(9).choice([-1.0, 1.0], c.shape[1])

    def times(matrix: Any, vectors: Any) -> Any:
        """``matrix`` times the first of two vectors, and its absolute values times the second."""
        found = np.empty((2, matrix.shape[0]))
        step = max(1, BLOCK_BYTES // (4 * matrix.shape[1]))

        def piece(low: int) -> None:
            part = matrix[low:low + step].astype(np.float64)
            found[0, low:low + step] = part @ vectors[0]
            np.abs(part, out=part)
            found[1, low:low + step] = part @ vectors[1]

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(piece, range(0, matrix.shape[0], step)))
        return found

    want, scale = times(a, times(b, (x, abs(x))))
    got = times(c, (x, abs(x)))[0]
    off = np.nan_to_num(abs(got - want) / (EPS * scale), nan=np.inf)
    return {"vector": float(off.max()), "elements": error_of(a, b, c)}


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--folder", type=Path, default=Path("."), help="where the files go, and from where they vanish")
    parse.add_argument("--gigabytes", type=float, help="of A, B and C together  [what the disk has]")
    parse.add_argument("--inner", type=int, help="K  [as N]")
    parse.add_argument("--seconds", type=float, default=600, help="of the whole run: the size follows from it")
    parse.add_argument("--kills", type=int, default=5)
    parse.add_argument("--precision", default="ieee")
    parse.add_argument("--devices", help="as of peakgemm multiply")
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--json", type=Path)
    asked = parse.parse_args()
    if not asked.folder.is_dir():
        parse.error(f"--folder {asked.folder} is no folder; name one that exists")
    if asked.precision not in PRECISIONS:
        parse.error(f"--precision {asked.precision} is unknown; valid ones: {', '.join(PRECISIONS)}")
    for name, least in (("gigabytes", LEAST_BYTES / 1e9), ("inner", 1), ("seconds", 1), ("kills", 0)):
        value = getattr(asked, name)
        if value is not None and not least <= value < float("inf"):
            parse.error(f"--{name} {value:g} is below {least:g}, or no number; raise it")
    records.check_writable(asked.json)
    chance, end = random.Random(asked.seed), time.monotonic() + asked.seconds
    folder = Path(tempfile.mkdtemp(prefix="memmap-kill-", dir=asked.folder))
    try:
        found = run(asked, folder, chance, end)
    finally:
        shutil.rmtree(folder)
    gpu = device.find()
    failed = [name for name, bad in (
        ("vector", not found["errors"]["vector"] < 1), ("elements", not found["errors"]["elements"] < LIMIT),
        ("computed twice", found["computed_twice"]), ("kills", len(found["kills"]) < asked.kills),
        ("half-written output under the final name", any(row["complete_name"] for row in found["kills"]))) if bad]
    if asked.json is not None:
        records.write(asked.json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"found": [found]}]))
    print(json.dumps(found, indent=1))
    if failed:
        print("Failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def run(asked: argparse.Namespace, folder: Path, chance: random.Random, end: float) -> dict[str, Any]:
    """The whole of it, in ``folder``."""
    speed = disk_gbs(folder, min(4.0, asked.seconds / 40))
    room = int((1 - SPARE) * shutil.disk_usage(folder).free)
    # A third of the time to write A and B, two thirds of what there is; the disk gets C as well.
    by_time = int(speed * 1e9 * asked.seconds / 2)
    total = min(room, by_time, int(asked.gigabytes * 1e9) if asked.gigabytes else room)
    n, k = sides(total, asked.inner)
    if n < 1:
        sys.exit(f"{total / 1e9:.3f} GB have no room for A, B and C with K = {k or 128}; raise --gigabytes or "
                 "--seconds, lower --inner, or name a --folder on a larger disk")
    a, b, out = (folder / name for name in ("a.npy", "b.npy", "c.npy"))
    writing = [write(a, n, k, 1), write(b, k, n, 2)]
    found: dict[str, Any] = {"m": n, "n": n, "k": k, "precision": asked.precision, "bytes": 4 * (2 * n * k + n * n),
                             "disk_gbs": speed, "disk_bytes": shutil.disk_usage(folder).total, "write_s": writing}
    command = [sys.executable, "-m", "peakgemm", "multiply", str(a), str(b), "-o", str(out), "--precision",
               asked.precision, *(("--devices", asked.devices) if asked.devices else ())]
    # At shares of the tiles that rise, so that no kill comes after the end.
    shares = sorted(0.9 * chance.random() for _ in range(asked.kills))
    found["kills"] = [kill(command, out, share, chance, end) for share in shares]
    tiles, last = tiles_of(out), journal_of(out)
    start, said = time.perf_counter(), folder / "said.json"
    code = subprocess.run([*command, "--json", str(said)], check=False, stdout=subprocess.DEVNULL).returncode
    if code:
        sys.exit(f"peakgemm multiply ended with exit code {code}, for the reason above")
    done = json.loads(said.read_text())["found"][0]
    found |= {"tiles": tiles, "last_run_s": time.perf_counter() - start, "last_run": done,
              "computed_twice": sum(row["lines_twice"] for row in found["kills"]) + len(last) - done["found"]}
    start = time.perf_counter()
    found["errors"] = check(*(np.load(path, mmap_mode="r") for path in (a, b, out)))
    found["check_s"] = time.perf_counter() - start
    return found


if __name__ == "__main__":
    raise SystemExit(main())
