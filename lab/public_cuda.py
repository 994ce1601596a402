"""Public ``.cu`` files as people have them: what `peakgemm limits` predicts of each, and why it refuses the others.

``lab/public_cuda.json`` lists the files; FOLDER holds their repositories as OWNER+NAME. None of them is in this one.

    python -m lab.public_cuda FOLDER [--size 4096] [--json results/h100/public-cuda.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peakgemm.cli.own import own_launch
from peakgemm.errors import PeakgemmError
from peakgemm.tools.bench import records
from peakgemm.tools.inspect.files import from_file
from peakgemm.tools.limits.launches import Launch, of_file
from peakgemm.tools.limits.limits import limits

LIST = Path(__file__).with_name("public_cuda.json")


def main() -> None:
    """Predict each file of the list, print what came of it, and count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for listed in json.loads(LIST.read_text())["files"]:
        row = {name: listed[name] for name in ("repository", "path")}
        try:
            rows.append(row | predicted(options.folder, listed, options.size)[1])
        except PeakgemmError as error:
            rows.append(row | {"refused": str(error).replace(f"{options.folder.resolve()}/", "")})
        print(rows[-1], flush=True)
    print(f"{sum('tflops' in row for row in rows)} of {len(rows)} predicted")
    if options.json:
        records.write(options.json, records.record(None, "sm_90", [{"found": rows}]))


def predicted(folder: Path, listed: Mapping[str, str], size: int, kernel: str | None = None
              ) -> tuple[Launch, dict[str, Any]]:
    """What `peakgemm limits FILE --size N [--kernel NAME]` follows, and the main of what it shows.

    Raises:
        PeakgemmError: it refuses.
    """
    path = folder / listed["repository"].replace("/", "+") / listed["path"]
    own = own_launch(path, kernel, None, None, (), None, {}, (), str(size), fill="zeros")
    launch = of_file(from_file(path, "sm_90", own.entry or ""), own.grid, own.block, own.args, own.shared)
    found = limits(launch)
    return launch, {"launch": own.said, **{name: found[name] for name in ("tflops", "ms", "limiter")}}


if __name__ == "__main__":
    main()
