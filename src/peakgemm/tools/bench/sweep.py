"""The tile table: rung 11 over (bm, bk, bn, rm, rn, double buffer)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import CompileFailed
from ...kernels.registry import rung
from ...kernels.rung import RungConfig
from ...kernels.validity import is_valid, require
from ...problem import Config
from ...runtime.architectures import Architecture, architecture
from ...runtime.compile import in_parallel
from ...runtime.device import Gpu
from .ladder import path_for, rung_product, static_row
from .peers import Peer
from .products import AgainstCublas
from .suites import Case
from .timer import Timer

TEMPLATE = rung(11)

# (bm, bk, bn, rm, rn): the rows of the published table, measured there on a V100 at 4096.
PUBLISHED = (
    (64, 16, 64, 4, 4), (64, 32, 64, 4, 4), (64, 4, 64, 8, 8), (64, 8, 64, 8, 8),
    (64, 16, 64, 8, 8), (64, 32, 64, 8, 8), (128, 16, 128, 8, 8), (128, 8, 128, 8, 8),
)


def published() -> list[Config]:
    """The eight published tiles, double-buffered as published."""
    return [RungConfig(bm, bn, bk, tm, tn, stages=2, fragments=2) for bm, bk, bn, tm, tn in PUBLISHED]


def space(arch: Architecture, most: int) -> list[Config]:
    """Up to ``most`` more valid tiles, spread over the sizes: 32 to 256 a side, 4x4 to 16x8 a thread.

    Tiles whose block has at least 64 threads and whose accumulators leave the compiler room.
    """
    tiles: list[Config] = []
    for bm in (32, 64, 128, 256):
        for bn in (32, 64, 128, 256):
            for bk in (4, 8, 16, 32):
                for tm, tn in ((4, 4), (4, 8), (8, 4), (8, 8), (8, 16), (16, 8)):
                    for buffers in (2, 1):
                        c = RungConfig(bm, bn, bk, tm, tn, stages=buffers, fragments=buffers)
                        if is_valid(TEMPLATE, c, arch) and 64 <= c.threads <= 512 and c not in published():
                            tiles.append(c)
    stride = max(1, len(tiles) // max(most, 1))
    return tiles[::stride][:most]


def sweep(configs: Sequence[Config], shape: tuple[int, int, int], arch: str, gpu: Gpu | None, peer: Peer | None,
          done: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row per tile, best first where they are measured. A tile that ptxas refuses says so in ``refused``.

    Raises:
        InvalidValue: a tile that breaks a constraint; the message names it.
    """
    limits = architecture(arch)
    for config in configs:
        require(TEMPLATE, config, limits)

    def one(config: Config) -> dict[str, Any]:
        chosen = path_for(TEMPLATE, config, arch, shape)
        try:
            row = static_row(TEMPLATE, chosen, arch, gpu)
        except CompileFailed as error:
            row = {"config": chosen.to_json(), "refused": str(error)}
        done(f"{config.label()} compiled")
        return row

    rows = in_parallel(one, configs)
    if gpu is None or peer is None:
        return rows
    against = AgainstCublas(Case("", *shape), gpu, peer, Timer(peer, seconds=0.3))
    for row in rows:
        if "refused" not in row:
            row.update(against.row(rung_product(TEMPLATE, TEMPLATE.read(row["config"]), gpu, peer)))
        done("measured")
    return sorted(rows, key=lambda row: -(row.get("ratio_to_cublas") or 0))
