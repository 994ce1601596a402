"""Limits: what SASS computes, counts beside the profiler's, the model beside its record."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import here, run
from peakgemm.errors import InvalidValue
from peakgemm.kernels.registry import rung
from peakgemm.tools.bench import records
from peakgemm.tools.inspect.files import from_file
from peakgemm.tools.limits.launches import of_file, of_rung
from peakgemm.tools.limits.limits import counts, limits, table, widened
from peakgemm.tools.limits.semantics import State, Unknown, compiled, operands

__all__ = ["here", "run"]
RESULTS = Path(__file__).parents[2] / "results" / "h100"


@pytest.mark.parametrize(("text", "before", "after"), [
    ("IADD3 R4, P0, R0, R1, RZ", (0xFFFFFFFF, 2), {"R4": 1, "P0": True}),
    ("IADD3 R4, P0, R0, -R1, RZ", (5, 7), {"R4": 0xFFFFFFFE, "P0": False}),
    ("IADD3.X R4, R0, R1, RZ, P1, !PT", (3, 4), {"R4": 8}),
    ("IMAD.WIDE R4, R0, 0x4, R2", (0xFFFFFFFF, 0, 16, 1), {"R4": 12, "R5": 1}),
    ("IMAD.HI.U32 R4, R0, R1, R2", (1 << 31, 4, 0, 7), {"R4": 9}),
    ("LEA R4, P0, R0, R1, 0x2", (1 << 30, 5), {"R4": 5, "P0": False}),
    ("LEA.HI R4, R0, R1, RZ, 0x5", (1 << 31, 1), {"R4": 17}),
    ("LEA.HI.X.SX32 R4, R0, R1, 0x1, P1", (0x80000000, 1), {"R4": 1}),
    ("SHF.R.S32.HI R4, RZ, 0x1f, R0", (0x80000000,), {"R4": 0xFFFFFFFF}),
    ("SHF.L.U64.HI R4, R0, 0x4, R1", (0xF0000000, 1), {"R4": 0x1F}),
    ("LOP3.LUT P0, R4, R0, R1, RZ, 0xc0, !PT", (12, 10), {"R4": 8, "P0": True}),
    ("ISETP.LT.AND P0, P2, R0, R1, PT", (0xFFFFFFFF, 0), {"P0": True, "P2": False}),
    ("ISETP.GE.U32.AND.EX P0, PT, R0, R1, PT, P1", (7, 7), {"P0": True}),
    ("VIMNMX R4, R0, R1, PT", (0xFFFFFFFF, 3), {"R4": 0xFFFFFFFF}),
    ("PRMT R4, R0, 0x5410, R1", (0x11112222, 0x33334444), {"R4": 0x44442222}),
    ("HFMA2.MMA R4, -RZ, RZ, 0, 5.9604644775390625e-08", (), {"R4": 1}),
    ("MUFU.RCP R4, R0", (0x40000000,), {"R4": 0x3F000000}),
    ("LDC R4, c[0x0][RZ]", (), {"R4": 7}), ("LDC.64 R4, c[0x4][0x8]", (), {"R4": 1 << 27, "R5": 1 << 8}),
])
def test_an_instruction(text, before, after):
    state = State(32, bytes([7, *bytes(63)]), {})
    state.predicates[""][1] = True
    for row, value in enumerate(before):
        state.registers[""][row] = value
    compiled(text, state)(True)
    for name, value in after.items():
        file = state.predicates if name[0] == "P" else state.registers
        assert set(file[""][int(name[1:])]) == {value}, name


def test_operands_and_what_is_not_known():
    assert operands("@!P0 LDG.E.128 R8, desc[UR6][R14.64+0x10] (*\"x\"*)") == (
        "LDG", {"E", "128"}, ["R8", "desc[UR6][R14.64+0x10]"])
    with pytest.raises(Unknown, match="BMMA"):
        compiled("BMMA R4, R0, R1, R2", State(32, bytes(64), {}))


@pytest.mark.parametrize("number", [3, 7, 13, 15, 17])
def test_counts_are_the_profilers(number):
    """Rung 03 among them, whose loads ptxas widens."""
    shape = [256] * 3
    run = next(one for one in records.runs_of(json.loads((RESULTS / "counters.json").read_text()))
               if one["shape"] == shape)
    ncu = next(row["ncu"] for row in run["rungs"] if row["number"] == number)
    launch = of_rung(rung(number), (256, 256, 256), "sm_90")
    path = launch.path(0)  # as good as any: whole tiles
    found = counts(path)
    for name in ("instructions", "shared_loads", "shared_stores", "ldgsts", "shared_wavefronts_ld",
                 "shared_wavefronts_st", "global_store_sectors"):
        assert found[name] * launch.blocks == pytest.approx(ncu[name], rel=0.02), name
    assert not path.guessed
    assert widened(launch) == (["ptxas joins loads from shared memory: 4 of 4 bytes in the PTX run as one of 16 (64 "
                                "instructions as 16)"] if number == 3 else [])


def test_the_model_says_what_its_record_says():
    record = json.loads((RESULTS / "limits.json").read_text())["found"]
    rows = {row["number"]: row for row in record}
    assert sum(abs(row["error"]) <= 0.15 for row in record) >= 14 and sum(row["agrees"] for row in record) >= 14
    found = limits(of_rung(rung(7), (4096, 4096, 4096), "sm_90"))
    assert found["tflops"] == pytest.approx(rows[7]["modelled_tflops"], rel=0.05)
    assert found["busy"]["shared memory"] == pytest.approx(rows[7]["busy"]["shared memory"], rel=0.05)
    assert sum(found["stalls"].values()) == pytest.approx(1)


SOURCE = """extern "C" __global__ void gather(const int* at, float* to, const float* from, int n) {
  __shared__ float tile[32][32];
  for (int i = 0; i < n; ++i) {
    tile[threadIdx.x][i % 32] = from[at[threadIdx.x] + i];
    __syncthreads();
    to[threadIdx.x + 32 * i] = tile[i % 32][threadIdx.x];
  }
}"""


def test_a_file_whose_addresses_depend_on_data(tmp_path):
    path = tmp_path / "gather.cu"
    path.write_text(SOURCE)
    launch = of_file(from_file(path, "sm_90"), [2], [32], [np.zeros(32, np.int32), np.zeros(4096, np.float32),
                                                          np.zeros(4096, np.float32), 64], 0)
    found = limits(launch)
    assert found["guessed"] and "LDG" in found["guessed"][0]
    assert found["counts"]["shared_wavefronts_st"] == 2 * 64 * 32, "a column of a tile of 32 words lies in one bank"
    with pytest.raises(InvalidValue, match=r"takes 4 arguments, 1 were given"):
        limits(of_file(from_file(path, "sm_90"), [2], [32], [1], 0))
    with pytest.raises(InvalidValue, match=r"rtx5090: there are no latencies.* h100\."):
        table("rtx5090")


def test_a_page(here, run):
    """Bars of both kernels, warps of both over time, and no record of that in the JSON."""
    code, out, _ = run("limits", "05", "--compare", "04", "--size", "256", "--html", "page.html", "--json", "a.json")
    text = (here / "page.html").read_text()
    assert code == 0 and "Page written to page.html" in out
    assert text.count('class="bars"') == 2 and text.count("<svg") == 2 and "04 padded tile" in text
    assert text.count("<rect class=") > 100 and "warp 7</text>" in text and str(here) not in text and "http" not in text
    assert "timeline" not in (here / "a.json").read_text()
    issued = limits(of_rung(rung(5), (256, 256, 256), "sm_90"), timeline=True)["timeline"]
    cycles = [at for at, *_ in issued]
    assert cycles == sorted(cycles) and cycles[-1] - cycles[0] <= 512 and len({warp for _, _, warp, _ in issued}) >= 8
