"""How long a newcomer takes from a clone to the first table, page, and kernel of their own: results/cpu/newcomer.json.

    python -m lab.newcomer --json results/cpu/newcomer.json

Clones the repository at hand into a new folder, and runs there what docs/first-steps.md tells a reader to run, with an
empty cache of compiled kernels. Packages come from the index that pip is set up with; what pip has in its own cache is
left to it. A step that fails ends the run with its output.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peakgemm.tools.bench import records

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "first-steps.md"


def steps(text: str) -> list[tuple[str, str]]:
    """(heading, commands) of the page: what stands in ```sh after each heading; a file in ```cuda is written first."""
    found = []
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        files = "".join(f"cat > {name} <<'EOF'\n{code}EOF\n" for name, code in
                        re.findall(r"^`(\w+\.cu)`:\n\n```cuda\n(.*?)^```", body, re.M | re.S))
        commands = "".join(re.findall(r"^```sh\n(.*?)^```", body, re.M | re.S))
        if commands:
            found.append((title, files + commands))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    records.check_writable(args.json)
    path = args.json.resolve()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PEAKGEMM_CACHE_DIR": str(Path(folder) / "cache"), "URL": str(ROOT)}
        for name in ("PYTHONPATH", "VIRTUAL_ENV"):
            environment.pop(name, None)
        begun, place = time.monotonic(), Path(folder)
        for title, commands in steps(PAGE.read_text(encoding="utf-8")):
            start = time.monotonic()
            done = subprocess.run(["bash", "-e", "-c", commands], cwd=place, env=environment, capture_output=True,
                                  text=True, check=False)
            now = time.monotonic()
            if done.returncode:
                sys.exit(f"{title} failed:\n{done.stdout}{done.stderr}")
            place = Path(folder) / "peakgemm"
            shown = [line for line in commands.splitlines() if line.startswith(("git", "make", "peakgemm", ".venv"))]
            rows.append({"step": title, "shown": shown[-1].partition("  #")[0].strip(), "seconds": now - start,
                         "since_clone_seconds": now - begun})
            print(f"{title}: {now - start:.0f} s", flush=True)
    machine = (f"{os.cpu_count()} CPU cores, no GPU, Python {platform.python_version()}; cloned from the same disk, "
               "packages by pip")
    records.write(path, records.record(None, "sm_90", [{"found": rows, "machine": machine}]))


if __name__ == "__main__":
    main()
