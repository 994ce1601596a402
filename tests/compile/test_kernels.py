"""Every rung compiles for every architecture without a spill, and its SASS is what its comment says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from docs.generate.publish import Checkout
from peakgemm import occupancy
from peakgemm.kernels.registry import LADDER, Kernel
from peakgemm.problem import Config
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import Compiled, in_parallel
from peakgemm.runtime.source import KERNELS, header_comment
from peakgemm.sass.elf import Cubin
from peakgemm.sass.facts import mix
from peakgemm.sass.program import Program
from peakgemm.tools.simulator.front.outline import outline
from rung_code import build
from seldom import exhaustive

ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ALIGNED = ("sm_75", "sm_90", "sm_120")  # others guarded alone, which wants more registers

# Bits of each access in the main loop of the aligned compilation on sm_90.
DIRECT = {"LDG": {"32"}}
STAGED = {"LDG": {"128"}, "LDS": {"128"}, "STS": {"128"}}
TRANSPOSED = {"LDG": {"128"}, "LDS": {"128"}, "STS": {"32", "128"}}
ASYNCHRONOUS = {"LDS": {"128"}, "LDGSTS": {"32", "128"}}
WIDTHS = {
    0: DIRECT, 1: DIRECT, 2: {"LDG": {"128"}},
    3: {"LDG": {"32"}, "LDS": {"128"}, "STS": {"32"}},  # four k-steps of a row at once
    4: {"LDG": {"32"}, "LDS": {"32"}, "STS": {"32"}},   # the pad forbids that
    5: STAGED, 6: STAGED, 7: STAGED,
    8: TRANSPOSED, 9: TRANSPOSED, 10: TRANSPOSED, 11: TRANSPOSED, 12: TRANSPOSED,
    13: ASYNCHRONOUS, 14: ASYNCHRONOUS, 16: ASYNCHRONOUS, 15: {"LDS": {"128"}},  # other warps copy
    17: {"LDS": {"32", "64"}},  # scales, to add up: the tensor cores read shared memory by themselves
}

every_rung = pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
every_pair = pytest.mark.parametrize(  # newer ones, and those that have another's limits, in `make test-all`
    ("kernel", "arch"), [(k, arch) if arch in ("sm_75", "sm_80", "sm_90") else exhaustive(k, arch)
                         for k in LADDER for arch in ARCHITECTURES if not k.lacks(architecture(arch))],
    ids=lambda x: x if isinstance(x, str) else x.name)


def aligned_ways(arch: str) -> set[bool]:
    return {False, arch in ALIGNED}


@cache
def of(kernel: Kernel, arch: str) -> dict[Config, Compiled]:
    """Default and named configs, guarded and some aligned."""
    configs = [replace(config, aligned=aligned) for config in (kernel.config_for(arch), *kernel.named.values())
               for aligned in aligned_ways(arch)]
    configs = list(dict.fromkeys(configs))
    return dict(zip(configs, in_parallel(lambda config: build(kernel, config, arch), configs), strict=True))


# What the pinned NVRTC 13.0 spills, in bytes, with stack frames, by architecture, as configs.json declares it.
SPILLS = {(name, arch): {tuple(pair) for pair in pairs}
          for name, entry in json.loads((KERNELS / "configs.json").read_text(encoding="utf-8")).items()
          for arch, pairs in entry.get("spills", {}).items()}


@every_pair
def test_code_is_as_the_tables_say(kernel: Kernel, arch: str) -> None:
    """Spills, static shared memory, and room for as many blocks as the default promises."""
    codes, limits, default = of(kernel, arch), architecture(arch), kernel.config_for(arch)
    assert {config.aligned for config in codes} == aligned_ways(arch)
    assert len(codes) >= len(aligned_ways(arch)) * max(1, len(kernel.named))
    spills = {(c.spill_bytes, c.stack_bytes) for c in codes.values()}
    assert spills == SPILLS.get((kernel.name, arch), {(0, 0)}), f'"spills" of {kernel.name} in configs.json'
    for config, code in codes.items():
        assert code.entry == kernel.entry and code.code.startswith(b"\x7fELF")
        assert code.static_shared == (0 if kernel.dynamic else kernel.shared_bytes(config)), config
        if replace(config, aligned=default.aligned) == default:
            fit = occupancy(limits, config.block_threads, code.registers, kernel.shared_bytes(config))
            assert fit.blocks_per_sm >= config.min_blocks, fit


@every_rung
def test_main_loop_accesses(kernel: Kernel) -> None:
    if kernel.number not in WIDTHS:
        pytest.skip("WIDTHS does not say yet how this rung's loop accesses memory")
    config = replace(kernel.config_for("sm_90"), aligned=True)
    found = mix(Program.of(Cubin.read(of(kernel, "sm_90")[config].code)).main)
    assert {opcode: set(by_width) for opcode, by_width in found.widths.items()} == WIDTHS[kernel.number]
    if kernel.wgmma:  # low into high, high into the sums; twelve products of 64 x 128 x 16
        assert (found.ffma, found.classes["tensor"]) == (2 * config.tm * config.tn, 3 * config.bk // 16)
    else:  # whole k-tiles: neither a remainder loop nor half of one
        assert found.ffma % (config.tm * config.tn * config.bk) == 0


def test_the_table_holds_every_file() -> None:
    assert [k.number for k in LADDER] == list(range(len(LADDER)))  # no gaps
    assert sorted(k.path for k in LADDER if not k.patched) == sorted((KERNELS / "ladder").glob("*.cu"))
    assert {k.path for k in LADDER if k.patched} <= {k.path for k in LADDER if not k.patched}
    assert sorted(k.header for k in LADDER if k.patched) == sorted((KERNELS / "ladder").glob("*.txt"))


@every_rung
def test_the_text_of_a_rung(kernel: Kernel) -> None:
    """One entry, its parameters, and a header comment whose parts the pages take."""
    assert [str(each) for each in outline(kernel.source).kernels] == [kernel.entry]
    listed = re.search(rf"{kernel.entry}\s*\((.*?)\)", kernel.source, re.S)
    assert listed is not None
    maps = " TENSOR_MAPS" if kernel.tensor_copies else ""  # of A and B, in the aligned compilation
    assert " ".join(listed[1].split()) == (
        "const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K, "
        "long long lda, long long ldb, long long ldc, float alpha, float beta" + maps)
    header = header_comment(kernel.header)
    assert header.startswith(f"{kernel.number:02} ")
    parts = ["Idea", "Removes", "Leaves", *(["Measured"] if kernel in Checkout(ROOT).measured_rungs() else [])]
    assert re.findall(r"^(\w+): \S", header, re.M) == parts


def test_no_system_header() -> None:
    sources = [path for suffix in ("*.cu", "*.cuh") for path in KERNELS.rglob(suffix)]
    assert [path.name for path in sources if re.search(r"#\s*include\s*<", path.read_text())] == []
