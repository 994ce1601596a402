"""Emulated products without a GPU: what is chosen, how much memory it takes, what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from struct import unpack_from
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.calls.prepared import Split
from peakgemm.errors import InvalidValue
from peakgemm.kernels.emulated.model import FOUR_TIMES, TWICE, estimate_us
from peakgemm.kernels.emulated.product import OLDER, PRODUCTS, half_as_high, product_on
from peakgemm.kernels.emulated.schemes import HEAD, SCHEMES, operand
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.kernels.family import Launches
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.validity import violations
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.device import Gpu
from peakgemm.selection.choose import Choice, choose
from peakgemm.selection.machine import machine

SQUARE = Problem.contiguous(4096, 4096, 4096)
SMS = 132


def launched(kernel: Kernel, config: Config, problem: Problem, sm_count: int, **ready: int) -> Launches:
    return kernel.launches(config, problem, "sm_90", sm_count, **ready)


def split_blocks(plan: Launches) -> int:
    """Blocks of the split pass; 0: there is none."""
    return sum(launch.blocks for launch in plan.kernels if launch.recipe.file == "split.cu")


def choice(m: int, n: int, k: int, ready: str = "", precision: str = "emulated") -> Choice:
    return choose(Problem.contiguous(m, n, k), "sm_90", SMS, "", precision, ready)


class TestChoice:
    @pytest.mark.parametrize(("sizes", "ready", "kernel", "config"), [
        ((4096, 4096, 4096), "", PRODUCTS["fp16x3"], {"accumulations": 1, "cluster": 1}),
        ((4096, 4096, 512), "", PRODUCTS["fp16x3"], {"accumulations": 2, "cluster": 1}),  # short sums: more often
        ((16384, 16384, 4096), "", PRODUCTS["fp16x3"], {"accumulations": 1, "cluster": 2}),
        # Half as high, and twice as many tiles, where SMs would have none.
        ((1024, 1024, 1024), "", PRODUCTS["fp16x3"], {"bm": 64}), ((896, 896, 896), "", PRODUCTS["fp16x3"], {"bm": 64}),
        ((2048, 2048, 2048), "", PRODUCTS["fp16x3"], {"bm": 128, "split": 1}),
        # A long A by a narrow B is split in registers; panels of a prepared B cost nothing more.
        ((25088, 128, 1152), "", STREAMED, {}), ((100352, 64, 576), "b", STREAMED, {}),
        ((640, 640, 640), "b", STREAMED, {}),
        # Of few results every sum is added up by itself, in up to 16 or 32 parts; of long parts rounding is more than
        # truncation.
        ((256, 256, 4096), "", None, {"accumulations": FOUR_TIMES}), ((256, 256, 65536), "", None,
                                                                     {"accumulations": TWICE}),
        ((256, 256, 4096), "b", None, {"accumulations": FOUR_TIMES}), ((256, 256, 131072), "b", None,
                                                                      {"accumulations": TWICE}),
    ])
    def test_on_tensor_cores(self, sizes: tuple[int, int, int], ready: str, kernel: Kernel | None,
                             config: dict[str, int]) -> None:
        chosen = choice(*sizes, ready)
        assert chosen.kernel is kernel or (kernel is None and chosen.kernel.family.scheme is SCHEMES["fp16x3"])
        assert {name: getattr(chosen.config, name) for name in config} == config and "fp16x3" in chosen.reason

    def test_blocks_share_k_where_tiles_are_few(self) -> None:
        for precision, sizes in (("emulated", (1024, 1024, 16384)), ("tf32x3", (256, 256, 8192))):
            deep = choice(*sizes, precision=precision)
            assert deep.kernel.family.scheme is not None and deep.config.split != 1

    @pytest.mark.parametrize("problem", [
        Problem.contiguous(64, 64, 64), Problem.contiguous(1, 4096, 4096), Problem.contiguous(4096, 4096, 63),
        Problem.contiguous(4096, 4096, 4096, alpha=0.0), Problem.contiguous(4096, 4096, 0),
        Problem.contiguous(4096, 8, 4096), Problem.contiguous(320, 320, 320), Problem.contiguous(4096, 4096, 32)])
    def test_what_cannot_win_is_ieee(self, problem: Problem) -> None:
        chosen = choose(problem, "sm_90", SMS, "", "emulated")
        assert chosen.kernel.family.scheme is None and "IEEE FFMA" in chosen.reason
        assert chosen.config == choose(problem, "sm_90", SMS).config

    @pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_120"])
    def test_emulated_is_ieee_where_nothing_was_measured(self, arch: str) -> None:
        chosen = choose(SQUARE, arch, 100, "", "emulated")
        assert chosen.kernel.family.scheme is None and f"not measured to win on {arch}" in chosen.reason

    def test_a_scheme_by_name(self) -> None:
        for name, scheme in SCHEMES.items():
            for arch, kernels in (("sm_90", PRODUCTS), ("sm_80", OLDER), ("sm_89", OLDER)):
                chosen = choose(Problem.contiguous(7, 5, 3), arch, SMS, "", name)
                assert chosen.kernel in (kernels[name], FUSED, STREAMED) and chosen.source == "named"
                assert chosen.kernel.family.scheme is scheme
                assert not violations(chosen.kernel, chosen.config, architecture(arch))
        with pytest.raises(InvalidValue, match=r"no such kernel for sm_75, which has none .* use 'emulated'"):
            choose(SQUARE, "sm_75", 40, "", "fp16x3")

    def test_prepared_costs_less(self) -> None:
        kernel, config = product_on(SCHEMES["fp16x3"], architecture("sm_90"))
        first, second = (estimate_us(kernel, config, SQUARE, machine("sm_90", SMS), ready) for ready in ("b", ""))
        assert first < second
        chosen = choice(640, 640, 640)
        assert chosen.kernel.split_before(chosen.config) == ""  # B is not split twice

    def test_where_a_is_split_in_registers(self) -> None:
        """A long A by a narrow B, with a workspace for B's panels and the guard's marks alone."""
        long, config = Problem.contiguous(100352, 64, 576), replace(streamed(64), accumulations=TWICE)
        plan = launched(STREAMED, config, long, SMS)
        assert split_blocks(plan) == 9 and plan.counters == (HEAD, 2 * 784)  # panels of B; a mark for each half tile
        assert plan.workspace_bytes == HEAD + -(-4 * 2 * 784 // 256) * 256 + operand(
            SCHEMES["fp16x3"], 64, 576, (), ()).bytes
        ready = launched(STREAMED, config, long, SMS, ready_b=0x1000)
        assert (split_blocks(ready), ready.kernels[-1].blocks, plan.kernels[-1].blocks) == (0, SMS, SMS)
        both = launched(FUSED, FUSED.default, long, SMS, ready_b=0x1000)  # which has no use for panels
        assert (split_blocks(both), both.workspace_bytes) == (0, HEAD + -(-4 * 2 * 784 // 256) * 256)

    def test_the_larger_operand_is_split_in_registers(self) -> None:
        """B, as A of C^T: only A, 512 rows, goes through a split pass."""
        p = Problem(512, 11008, 4096, 4096, 4096, 11008, trans_b=True, beta=0.5, c0=(11008, 1), alignment=(16, 8, 4),
                    batch=Batch((2,), (1 << 21,), (0,), (512 * 11008,), (0,)))
        assert p.turned().turned() == p and p.turned().c0 == (1, 11008) and p.turned().alignment == (8, 16, 4)
        assert replace(p, c0=None).turned().turned() == replace(p, c0=None)
        with pytest.raises(InvalidValue, match="ldc = 11008 is shorter than its row of 11009"):
            Problem(11009, 512, 64, 64, 512, 11008, trans_c=True)
        one = replace(p, batch=Batch(), alignment=(16, 16, 16))
        chosen = choose(one, "sm_90", SMS, "", "emulated")
        assert chosen.kernel is STREAMED and chosen.config.trans_c
        plan, ready = (launched(STREAMED, chosen.config, one, SMS, ready_a=at) for at in (0, 0x1000))
        assert plan.problem == one.turned() and not plan.problem.is_plain
        assert (split_blocks(plan), split_blocks(ready)) == (4 * 64, 0)  # panels of A
        assert plan.workspace_bytes - ready.workspace_bytes == operand(SCHEMES["fp16x3"], 512, 4096, (), ()).bytes
        assert choose(one, "sm_90", SMS, "", "emulated", "a").config.trans_c
        assert not choose(replace(one, m=4096, n=512, ldc=512), "sm_90", SMS, "", "emulated").config.trans_c

    def test_panels_are_for_kernels_that_read_them(self) -> None:
        """Of a prepared operand; on the side of A none but the kernel that has both split, and those asked for C^T."""
        split = Split(SCHEMES["fp16x3"], None, 0x1000, 64, 576)
        long = Problem.contiguous(64, 64, 576)
        for kernel, config, sides in ((FUSED, FUSED.default, ""), (STREAMED, streamed(64), "b"),
                                      (STREAMED, replace(streamed(64), trans_c=True), "a"),
                                      (PRODUCTS["fp16x3"], PRODUCTS["fp16x3"].default, "ab")):
            for side in "ab":
                canonical: Any = SimpleNamespace(problem=long, swapped=side == "a")
                gpu = Gpu(0, "Turing", "sm_75", 40, 1590, 320.0, 4 << 20, "13.0")  # refuses whatever gets so far
                call = partial(split.bound, Choice(kernel, config, "", ""), canonical, gpu)
                if side in sides:
                    with pytest.raises(InvalidValue, match="wgmma needs sm_90"):
                        call()
                else:
                    assert call() is None

    @pytest.mark.parametrize(("kernel", "changes", "says"), [
        (PRODUCTS["fp16x3"], {"stages": 6}, "STAGES = 6"), (PRODUCTS["fp16x3"], {"cluster": 2}, "BM = 64"),
        (PRODUCTS["fp16x3"], {"bm": 96, "tm": 6}, "BM = 96"),
        (STREAMED, {"bn": 96, "tn": 6}, "128 x 96 must be"), (STREAMED, {"stages": 9}, "shared memory"),
        (STREAMED, {"stages": 1}, "stages = 1"), (STREAMED, {"cluster": 2}, "cluster"),
        (STREAMED, {"registers": 248}, "from 24 to 240"), (STREAMED, {"bm": 192}, "192 x 64 must be"),
        (STREAMED, {"registers": 232, "producers": 256}, "producers = 256"),
        (FUSED, {"producers": 0}, "producers = 0 must be 128 to 512"),
        (FUSED, {"producers": 384, "stages": 2}, "producers = 384 must be 128 to 256"),
        (FUSED, {"producers": 192}, "multiple of 128"), (FUSED, {"registers": 164}, "multiple of 8"),
        (FUSED, {"registers": 240}, "it leaves 16"), (FUSED, {"bn": 128, "tn": 8}, "BN = 128")])
    def test_configurations_that_are_none(self, kernel: Kernel, changes: dict[str, int], says: str) -> None:
        plain = {STREAMED: streamed(64), FUSED: FUSED.default}.get(kernel, half_as_high(SCHEMES["fp16x3"]))
        assert not list(violations(kernel, plain, architecture("sm_90")))
        assert any(says in text for text in violations(kernel, replace(plain, **changes), architecture("sm_90")))
        assert any("wgmma needs sm_90" in text for text in violations(kernel, plain, architecture("sm_89")))


class TestMemory:
    def test_workspace(self) -> None:
        """Head, and 4 bytes (6 for bf16x9) an element with the panels' tails."""
        for name, width in (("fp16x3", 4), ("tf32x3", 8), ("bf16x9", 6)):
            plan = launched(PRODUCTS[name], PRODUCTS[name].default, SQUARE, SMS)
            elements = 2 * 4096 * 4096
            assert HEAD + width * elements < plan.workspace_bytes < HEAD + 1.05 * width * elements

    def test_broadcast_operands_are_split_once(self) -> None:
        scheme = SCHEMES["fp16x3"]
        assert operand(scheme, 200, 130, (3, 5), (1000, 50)).matrices == 15
        shared = operand(scheme, 200, 130, (3, 5), (0, 50))
        assert (shared.matrices, shared.panels, shared.steps) == (5, 5 * 2 * 3, (0, 0, 1))
        assert operand(scheme, 1, 1, (), ()).panels == 1

    def test_prepared_operands_take_no_workspace(self) -> None:
        config = PRODUCTS["fp16x3"].default
        whole, ready = (launched(PRODUCTS["fp16x3"], config, SQUARE, SMS, ready_b=address) for address in (0, 0x1000))
        assert ready.workspace_bytes == HEAD + (whole.workspace_bytes - HEAD) // 2
        assert split_blocks(ready) * 2 == split_blocks(whole)
        assert ready.kernels[-1].blocks == whole.kernels[-1].blocks == SMS
        # struct Emulated after struct Gemm: four steps, then the panels' addresses.
        assert unpack_from("<2q", ready.kernels[-1].arguments, 248 + 32) == (0, 0x1000)

    def test_clusters_come_in_pairs(self) -> None:
        config = replace(PRODUCTS["fp16x3"].default, cluster=2)
        plan = launched(PRODUCTS["fp16x3"], config, Problem.contiguous(129, 128, 64), SMS)
        assert plan.kernels[-1].blocks == 2  # one pair has both rows of tiles
        assert launched(PRODUCTS["fp16x3"], config, SQUARE, 131).kernels[-1].blocks == 130

    def test_as_many_stages_as_fit(self) -> None:
        for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120"):
            for scheme in SCHEMES.values():
                kernel, config = product_on(scheme, architecture(arch))
                assert kernel.shared_bytes(config) <= architecture(arch).shared_per_block
                assert not violations(kernel, config, architecture(arch))

    def test_too_many_tiles(self) -> None:
        huge = Problem(2**30, 2**30, 64, 64, 2**30, 2**30, batch=Batch((9,), (0,), (0,), (2**60,), (2**60,)))
        with pytest.raises(InvalidValue, match="the limit is"):
            launched(PRODUCTS["fp16x3"], PRODUCTS["fp16x3"].default, huge, SMS)


class TestHost:
    """NumPy without a GPU; with one these calls run there (tests/gpu)."""

    @pytest.fixture(autouse=True)
    def no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("peakgemm.runtime.device.find", lambda index=None: None)

    def test_emulated_runs_in_float32(self) -> None:
        a = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
        assert (pg.matmul(a, a.T, precision="emulated") == pg.matmul(a, a.T)).all()
        plan = pg.plan(a, a.T, precision="emulated")
        plan.execute(a, a.T)
        assert plan.last_path() == "numpy" and plan.workspace_bytes == 0
        said = pg.explain(a, a.T, precision="emulated")
        assert said.precision == "emulated" and "NumPy" in str(said)
        ready = pg.prepare(a.T.copy(), precision="emulated")
        assert np.allclose(pg.matmul(a, ready, precision="emulated"), a @ a.T, atol=1e-4)

    @pytest.mark.parametrize("call", [pg.matmul, pg.gemm, pg.plan, pg.explain])
    def test_a_scheme_is_refused(self, call: object) -> None:
        a = np.ones((4, 4), np.float32)
        with pytest.raises(InvalidValue, match=r"'fp16x3' needs a GPU.*'emulated'"):
            call(a, a, precision="fp16x3")  # type: ignore[operator]
        with pytest.raises(InvalidValue, match="'fp32' is unknown; valid ones: 'ieee', 'emulated'"):
            call(a, a, precision="fp32")  # type: ignore[operator]
