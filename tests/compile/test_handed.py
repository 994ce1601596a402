"""What hands accumulators on compiles to the loop of what does not, and spills nothing."""

from __future__ import annotations

import pytest

from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.tile_model import may_hand_on, tilings
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import compile_for
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.schedule import handing_on
from peakgemm.problem import Config, Problem, varied
from peakgemm.sass.facts import static_facts
from peakgemm.selection.machine import machine

SQUARE = Problem.contiguous(4096, 4096, 4096)


def handed(arch: str) -> list[tuple[Kernel, Config]]:
    """Those that may hand on."""
    gpu = machine(arch, 132)
    return [(kernel, varied(config, chunked=False)) for kernel in (SPECIALISED, WIDE)
            for config in tilings(kernel, gpu) if may_hand_on(kernel, config)]


@pytest.mark.parametrize(("kernel", "plain"), handed("sm_90"),
                         ids=lambda one: one.name if isinstance(one, Kernel) else one.label())
def test_the_loop_is_that_of_whole_tiles(kernel: Kernel, plain: Config) -> None:
    both = plain, handing_on(plain)
    found = {config.handed: compile_for(kernel, config, SQUARE, "sm_90") for config in both}
    assert {(code.spill_bytes, code.stack_bytes) for code in found.values()} == {(0, 0)}
    old, new = (static_facts(found[handed].code, "sm_90a") for handed in (False, True))
    # Wide tiles take seven more of 1,626, of what is not FFMA: 5000 takes 1.0003 of the time of the kernel before.
    assert new["loop_ffma"] == old["loop_ffma"] and new["loop_instructions"] <= old["loop_instructions"] + 8
    assert new["bank_cycles_per_ffma"] < old["bank_cycles_per_ffma"] + 0.015


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120"])
def test_older_and_newer_gpus(arch: str) -> None:
    for kernel, plain in handed(arch):
        code = compile_for(kernel, handing_on(plain), SQUARE, arch)
        assert (code.spill_bytes, code.stack_bytes) == (0, 0), plain.label()
