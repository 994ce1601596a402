"""What each release of NVRTC makes of our kernels for sm_90: results/sm_90/compilers.json, which
docs/contributing/compilers.md shows. No GPU is needed.

    python -m lab.compilers --json results/sm_90/compilers.json           every kernel by every release
    python -m lab.compilers --kernels wide,specialised 13.0.88 13.5.37    some kernels by some releases

A release is fetched from the package index into a folder of its own, build/nvrtc/RELEASE, and used by a process of its
own, which preloads its library; two run at a time. The releases are `peakgemm.runtime.nvrtc.TESTED`: the next one is
one more entry there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from peakgemm.errors import CompileFailed, InvalidValue, MissingComponent
from peakgemm.kernels import shortfall
from peakgemm.kernels.emulated.product import PRODUCTS, half_as_high
from peakgemm.kernels.emulated.schemes import SCHEMES, split_recipe
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.kernels.ffma import chain, repack, skinny
from peakgemm.kernels.ffma import small as small_kernel
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.staged import STAGED
from peakgemm.kernels.ffma.tile_model import may_hand_on, one_slice, tilings, variants
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.recipe import Recipe
from peakgemm.kernels.registry import LADDER, Kernel
from peakgemm.kernels.schedule import handing_on
from peakgemm.problem import Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import Compiled, quietly
from peakgemm.runtime.nvrtc import TESTED, nvrtc_version
from peakgemm.sass.compiled_loop import CompiledLoop, read
from peakgemm.selection.machine import machine
from peakgemm.tools.bench import records

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "build" / "nvrtc"
ARCH = "sm_90"
AT_A_TIME = 2  # releases: each process compiles one kernel after another


def square(size: int) -> Problem:
    return Problem(size, size, size, size, size, size)


LARGE = square(4096)
LARGE_TILE = 128 * 128  # results: from here on a tile is compiled for a second layout
#: (family, label, what compiles it, the config that `shortfall` asks about or None)
Entry = tuple[str, str, Callable[[], Compiled], "Config | None"]


def _by_recipe(family: str, label: str, made: Recipe, config: Config | None = None) -> Entry:
    return family, label, made.compile, config if made.bare_loop else None


def _tiled() -> Iterator[Entry]:
    """Every configuration that the model ranks as each way is compiled, accumulators handed on among them."""
    gpu = machine(ARCH, architecture(ARCH).gpu_sms)
    different: dict[str, Entry] = {}
    for kernel, tiling in [(each, tiling) for each in (SPECIALISED, WIDE) for tiling in tilings(each, gpu)]:
        ways = list(variants(tiling))
        if may_hand_on(kernel, tiling):
            ways.append(handing_on(next(one_slice(kernel, tiling, LARGE, gpu))))
        large = tiling.bm * tiling.bn >= LARGE_TILE
        for way, problem in product(ways, (LARGE, replace(LARGE, trans_b=True))[:1 + large]):
            made = kernel.recipe(way, problem, ARCH)
            label = way.label() + ", one tile a block" * (way.one_tile and not tiling.one_tile)
            label += " NT" * problem.trans_b
            different.setdefault(made.name, _by_recipe(kernel.name, label, made, way))
    yield from different.values()
    for kernel in (SPECIALISED, WIDE):
        made = kernel.reduce_recipe(tilings(kernel, gpu)[0], LARGE, ARCH)
        yield _by_recipe("second kernel", f"sums of {kernel.name}", made)
    yield _by_recipe("second kernel", "the first chunk repacked", repack.recipe(ARCH))


def _others() -> Iterator[Entry]:
    """One configuration of each kernel whose sizes are compiled in, or that older architectures run."""
    gpu = machine(ARCH, architecture(ARCH).gpu_sms)
    thin, small = Problem(8, 4096, 4096, 4096, 4096, 4096), square(64)
    chosen: tuple[tuple[Kernel, Config, Problem], ...] = (
        (CHAIN, next(chain.configurations(thin, gpu)), thin),
        (SKINNY, next(skinny.configurations(thin, gpu)), thin),
        (SMALL, next(small_kernel.configurations(small, gpu)), small),
        (STAGED, STAGED.config_for(ARCH), LARGE))
    for kernel, config, problem in chosen:
        yield _by_recipe(kernel.name, config.label(), kernel.recipe(config, problem, ARCH), config)
    made = SKINNY.reduce_recipe(chosen[1][1], thin, ARCH)
    yield _by_recipe("second kernel", f"sums of {SKINNY.name}", made)


def _emulated() -> Iterator[Entry]:
    """Each scheme's kernel by tiles of both heights, those that split on the way, split and reduce passes."""
    for scheme in SCHEMES.values():
        kernel = PRODUCTS[scheme.name]
        for config in (kernel.default, half_as_high(scheme)):
            yield _by_recipe("emulated", f"{scheme.name} {config.label()}", kernel.recipe(config, LARGE, ARCH))
        yield _by_recipe("emulated", f"{scheme.name}, its split pass", split_recipe(scheme, LARGE, ARCH))
        yield _by_recipe("emulated", f"{scheme.name}, sums", kernel.reduce_recipe(kernel.default, LARGE, ARCH))
    for kernel, config in (*((STREAMED, streamed(n)) for n in (64, 128)), (FUSED, FUSED.default)):
        yield _by_recipe("emulated", f"{kernel.family.name} {config.label()}", kernel.recipe(config, LARGE, ARCH))


def _ladder() -> Iterator[Entry]:
    for kernel in LADDER:
        config = replace(kernel.config_for(ARCH), aligned=True)
        yield _by_recipe("ladder", kernel.page, kernel.recipe(config, LARGE, ARCH))


def entries() -> list[Entry]:
    """Everything that is compiled, each once."""
    return [*_tiled(), *_others(), *_emulated(), *_ladder()]


def facts(entry: Entry) -> dict[str, Any]:
    """What the compiler at hand makes of a kernel: bytes and registers a thread, its main loop a turn."""
    _, _, make, config = entry
    try:
        made = make()
    except (CompileFailed, InvalidValue) as error:
        return {"failed": str(error).splitlines()[0]}
    loop: CompiledLoop | None = read(made.code, made.entry)
    found: dict[str, Any] = {"registers": made.registers, "spill_bytes": made.spill_bytes, "code_bytes": len(made.code)}
    if loop is not None:
        found |= {**loop.to_json(), "share": round(loop.share, 4)}
        short = shortfall.reason(config, loop.to_json()) if config is not None else ""
        found |= {"shortfall": short} if short else {}
    return found | ({"note": made.note} if made.note else {})


def requirements(release: str) -> list[str]:
    """What brings a release, as pip takes it; CUDA 12 has bindings of its own."""
    if release.startswith("12."):
        return [f"nvidia-cuda-nvrtc-cu12=={release}", "cuda-bindings>=12.9,<13"]
    return [f"nvidia-cuda-nvrtc=={release}"]


def fetch(release: str) -> Path:
    """The folder that holds ``release``, from the package index where it is not there yet.

    Raises:
        MissingComponent: the index does not serve it; the message has pip's last line.
    """
    folder = FOLDERS / release
    if not any(folder.glob("nvidia/*/lib/libnvrtc.so*")):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                               "--no-deps", "--upgrade", "--target", str(folder), *requirements(release)],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["pip failed"]
            raise MissingComponent(f"NVRTC {release} cannot be fetched ({said[-1]}); a package index is needed, which "
                                   "pip config names")
    return folder


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of a process that compiles by the release in ``folder``."""
    library = next(path for path in sorted(folder.glob("nvidia/*/lib/libnvrtc.so*")) if "builtins" not in path.name
                   and ".alt." not in path.name)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")]), "PEAKGEMM_SHIPPED": "0",
            "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(library.parent)}


def by_release(release: str, kernels: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """What a release makes of the kernels of the families ``kernels`` (none: of all), by family and label.

    Raises:
        MissingComponent: see `fetch`; or its process failed.
    """
    done = subprocess.run([sys.executable, "-m", "lab.compilers", "--worker", "--kernels", ",".join(kernels), release],
                          env=surroundings(fetch(release)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise MissingComponent(f"compiling by NVRTC {release} failed with {done.returncode}; see above")
    return json.loads(done.stdout)


def work(release: str, kernels: Sequence[str]) -> None:
    """Compile in this process, whose NVRTC must be ``release``, and print what it made."""
    version = nvrtc_version()
    assert release.startswith(f"{version}."), f"NVRTC {version} is loaded instead of {release}"
    loaded = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(FOLDERS / release) in loaded, f"another NVRTC than that of {FOLDERS / release} is loaded"
    wanted = [entry for entry in entries() if not kernels or entry[0] in kernels]
    with quietly():
        made = {f"{entry[0]}|{entry[1]}": facts(entry) for entry in wanted}
    print(json.dumps(made))


def rows(made: Mapping[str, Mapping[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row a kernel, of what each release made of it."""
    names = dict.fromkeys(name for found in made.values() for name in found)
    return [{"family": name.partition("|")[0], "kernel": name.partition("|")[2],
             "releases": {release: found[name] for release, found in made.items()}} for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=list(TESTED), help=f"of NVRTC; default: {', '.join(TESTED)}")
    parser.add_argument("--kernels", default="", help="families, by commas: wide, specialised, ladder, emulated, ...")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    kernels = [name for name in args.kernels.split(",") if name]
    if args.worker:
        work(args.releases[0], kernels)
        return
    records.check_writable(args.json)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        made = dict(zip(args.releases, pool.map(lambda one: by_release(one, kernels), args.releases), strict=True))
    found = rows(made)
    for row in found:
        print(f"{row['family']} {row['kernel']}")
        for release, one in row["releases"].items():
            print(f"  {release:10}", ", ".join(f"{name} {value}" for name, value in one.items()))
    if args.json is not None:
        records.write(args.json, records.record(None, ARCH, [{"found": found}]))
        print(f"Written to {args.json}")


if __name__ == "__main__":
    try:
        main()
    except (InvalidValue, MissingComponent) as error:
        sys.exit(f"{Path(__file__).name}: {error}")
