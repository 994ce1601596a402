"""Build what a release publishes, and try it as a user would: `make release`.

    python -m lab.release dist/release [--cubins build/cubins]

Makes an sdist, a wheel that compiles its kernels at first use, and with ``--cubins``, a folder that `lab.cubins` wrote,
a wheel that brings them. Package indexes keep one wheel of a version and platform but for its build number: that with
cubins has one, so pip prefers it. Each wheel is then installed into an empty environment without a network, where
`peakgemm doctor`, a kernel in the simulator and a product of the host have to work.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from peakgemm.version import __version__

MOST_BYTES = 100 << 20  # that PyPI takes
PRODUCT = """
import numpy as np, peakgemm as pg
a, b = (np.random.default_rng(i).standard_normal((70, 70), np.float32) for i in range(2))
assert np.allclose(pg.replay(a, b), a @ b, atol=1e-4)
"""
TRIALS = (["-m", "peakgemm", "doctor"], ["-m", "peakgemm", "simulate", "03", "--size", "64"], ["-c", PRODUCT])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where sdist and wheels go; emptied first")
    parser.add_argument("--cubins", type=Path, help="of `lab.cubins`; without it no wheel with cubins is made")
    args = parser.parse_args()
    if any(path.suffix not in (".whl", ".gz") for path in args.folder.glob("*")):
        sys.exit(f"{args.folder} holds other things than a release; name an empty folder")
    rmtree(args.folder, ignore_errors=True)
    files = build(args.folder, args.cubins)
    _run("-m", "twine", "check", "--strict", *map(str, files))
    _run("-m", "check_wheel_contents", *(str(file) for file in files if file.suffix == ".whl"))
    for file in files:
        size = file.stat().st_size
        print(f"{file.name}: {size / 1e6:.1f} MB", flush=True)
        if size > MOST_BYTES:
            sys.exit(f"{file.name} has {size:,} bytes, and PyPI takes {MOST_BYTES:,}: leave out an architecture")
    with TemporaryDirectory() as scratch:
        packages = Path(scratch, "packages")
        _run("-m", "pip", "download", "--quiet", "--dest", str(packages), "--constraint", "constraints.txt",
             str(files[1]))
        for wheel in files[1:]:
            install_and_try(wheel, packages, Path(scratch, wheel.stem))
    print(f"peakgemm {__version__} installs and runs from {len(files) - 1} wheels in {args.folder}")


def build(folder: Path, cubins: Path | None) -> list[Path]:
    """The sdist, the wheel without cubins, and the one with them."""
    os.environ.pop("PEAKGEMM_CUBINS", None)
    _run("-m", "build", "--outdir", str(folder))
    files = [next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))]
    if cubins is not None:
        with TemporaryDirectory() as scratch:
            _run("-m", "build", "--wheel", "--outdir", scratch, PEAKGEMM_CUBINS=str(cubins.resolve()))
            _run("-m", "wheel", "tags", "--remove", "--build", "1", str(next(Path(scratch).glob("*.whl"))))
            made = next(Path(scratch).glob("*.whl"))
            files.append(folder / made.name)
            files[-1].write_bytes(made.read_bytes())
    return files


def install_and_try(wheel: Path, packages: Path, environment: Path) -> None:
    """Install ``wheel`` beside ``packages`` alone, and run `TRIALS` outside of the checkout."""
    _run("-m", "venv", str(environment))
    python = environment / "bin" / "python"
    for args in (["-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(packages), str(wheel.resolve())],
                 *TRIALS):
        print(f"{wheel.name}: python {' '.join(args[:3]) if args[0] == '-m' else '-c a product of the host'}",
              flush=True)
        done = subprocess.run([python, *args], cwd=environment, text=True, capture_output=True, check=False,
                              env={**os.environ, "PEAKGEMM_CACHE_DIR": str(environment / "cache"), "PYTHONPATH": ""})
        if done.returncode:
            sys.exit(f"{wheel.name}: {' '.join(args)} failed:\n{done.stdout}{done.stderr}")


def _run(*args: str, **environment: str) -> None:
    """Python with ``args``; ends the command where it fails."""
    done = subprocess.run([sys.executable, *args], env={**os.environ, **environment}, check=False)
    if done.returncode:
        sys.exit(f"python {' '.join(args)} failed")


if __name__ == "__main__":
    main()
