"""What is said of compilers: by the doctor, by a missing architecture, and by the table of what each makes."""

from __future__ import annotations

from typing import Any

import pytest

from peakgemm.cli import doctor
from peakgemm.errors import MissingComponent
from peakgemm.kernels import shortfall
from peakgemm.problem import Problem
from peakgemm.runtime import nvrtc
from peakgemm.runtime.compile import compile_source
from peakgemm.selection.choose import choose


@pytest.mark.parametrize(("version", "verdict", "says"), [
    (nvrtc.TESTED[-1].rpartition(".")[0], "yes", "among those tested"), ("13.1", "yes", "not tested itself"),
    ("12.8", "old", "'nvidia-cuda-nvrtc-cu12>=12.9,<13'"), ("13.10", "new", "newer than any"),
    ("14.0", "new", f"pip install 'nvidia-cuda-nvrtc=={nvrtc.TESTED[-1]}'")])
def test_the_doctor_says_whether_a_release_is_tested(monkeypatch: pytest.MonkeyPatch, version: str, verdict: str,
                                                     says: str) -> None:
    monkeypatch.setattr(doctor, "nvrtc_version", lambda: version)
    _, found, told = doctor._compiler()
    assert found == verdict and told.startswith(f"{version}, cuda.core ") and says in told


def test_the_doctor_tells_what_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(kernel: Any, config: Any, problem: Problem, arch: str) -> str:
        return "its main loop has 7 loads of spilled registers" if kernel.name == "wide" else ""

    choose.cache_clear()
    before = choose(Problem(*[8192] * 6), *doctor.REFERENCE)
    assert before.kernel.name == "wide" and before.passed_over == ()
    ((_, verdict, told),) = doctor._compilations()
    assert verdict == "yes" and "no configuration is passed over for squares of 1024, 2048, 4096, 8192" in told
    monkeypatch.setattr(shortfall, "known", known)
    choose.cache_clear()
    try:
        found = choose(Problem(*[8192] * 6), *doctor.REFERENCE)
        assert found.passed_over and all(one in found.reason for one in found.passed_over)
        ((_, verdict, told),) = doctor._compilations()
        assert verdict == "no" and "7 loads of spilled registers" in told
        assert f"8192: {found.kernel.name} {found.config.label()} runs, not wide 192x256" in told
    finally:
        choose.cache_clear()


@pytest.mark.parametrize(("version", "known", "arch", "says"), [
    ("13.0", [75, 80, 90, 120], "sm_90", ""), ("13.0", [75, 80, 90, 120], "sm_90a", ""),
    ("13.0", [75, 80, 90], "sm_70", "dropped it (oldest: sm_75); install peakgemm[cu12]"),
    ("13.0", [75, 80, 90], "sm_120", "newest: sm_90); run: pip install --upgrade nvidia-cuda-nvrtc,"),
    ("12.4", [50, 80, 90], "sm_100", "pip install --upgrade nvidia-cuda-nvrtc-cu12,")])
def test_an_architecture_that_the_compiler_lacks(monkeypatch: pytest.MonkeyPatch, version: str, known: list[int],
                                                 arch: str, says: str) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: version)
    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcGetSupportedArchs", lambda: (0, known))
    told = nvrtc.lacking(arch)
    assert says in told and bool(told) == bool(says)
    if says:
        with pytest.raises(MissingComponent, match=arch):
            compile_source('extern "C" __global__ void lacked() {}', "lacked", arch)


