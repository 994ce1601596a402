"""``peakgemm simulate``: rungs and files from the command line, the report, one message for a mistake."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import record_schema
from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.kernels.registry import rung
from peakgemm.problem import Problem
from peakgemm.tools.bench.simulated import matrices
from peakgemm.tools.simulator import run as simulate
from peakgemm.tools.simulator import run_rung
from peakgemm.tools.simulator.front.arguments import DTYPES, argument
from rung_code import arguments, launch
from simulator_cases import FIXTURES, command, line_of

CU, PTX = FIXTURES / "simulate.cu", FIXTURES / "simulate.ptx"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in, with ``k.cu`` and ``k.ptx``."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(CU, "k.cu")
    shutil.copy(PTX, "k.ptx")
    return tmp_path


def run(words):
    return command(*shlex.split(words))


def marked(name):
    return line_of(f"[{name}]", "simulate.cu")


def counter(out, name):
    """A figure of the printed counters table."""
    return int(re.search(rf"^{name} +([\d,]+) *$", out, re.M)[1].replace(",", ""))


def array(out, number):
    """The row of an argument: dtype, shape, least, mean, most, how many are not finite."""
    return re.search(rf"^ *{number}  +(\w+.*)$", out, re.M)[1].split()


# ---- rungs -----------------------------------------------------------------------------------


def test_a_rung():
    code, out, err = run("warp-tile --size 64")
    assert (code, err) == (0, "")
    assert "12 warp tile, M, N, K = 64, 64, 64: largest error" in out and "No fault found." in out
    assert "12_warp_tile.cu" in out and "include/rung.cuh" in out
    a, b, c = matrices((64, 64, 64))
    counters = run_rung(12, a, b, c).counters
    for short in ("shared_wavefronts", "global_sectors", "barriers", "warp_instructions"):
        assert counter(out, short.replace("_", " ")) == counters[short] > 0


def test_a_rung_with_scalars_and_a_shape():
    code, out, _ = run("3 --shape 33x17x9 --alpha -0.5 --beta 2 --no-source")
    assert code == 0
    assert 0 < float(re.search(r"33, 17, 9: largest error ([\d.]+) eps", out)[1]) < 6
    assert "03_shared_tile.cu" not in out


def test_run_takes_a_rung():
    kernel, (a, b, c) = rung(12), matrices((70, 130, 40))
    made = launch(kernel, kernel.config_for("sm_90"), Problem.contiguous(70, 130, 40))
    report = simulate(12, grid=made.blocks, block=made.threads, args=[a, b, c, *arguments(made)])
    assert report.clean and report.kernel == kernel.entry
    want = np.full_like(c, np.nan)
    run_rung(12, a, b, want)
    assert (c == want).all()


def test_run_rung_takes_numpy_matrices_only():
    a, b, c = matrices((8, 8, 8))
    with pytest.raises(InvalidType, match="B is a list"):
        run_rung(0, a, b.tolist(), c)
    with pytest.raises(InvalidType, match="float64"):
        run_rung(0, a, b.astype("f8"), c)
    with pytest.raises(InvalidValue, match="row-major copy"):
        run_rung(0, a.T, b, c)
    with pytest.raises(InvalidValue, match="unknown rung 99"):
        run_rung(99, a, b, c)


def test_run_rung_of_views_and_of_nothing():
    a, b, c = matrices((40, 24, 16))
    wide, want = np.full((40, 33), 7, np.float32), c.copy()
    run_rung(9, a, b, want)
    assert run_rung(9, a, b, wide[:, 1:25]).clean
    assert (wide[:, 1:25] == want).all() and (wide[:, :1] == 7).all() and (wide[:, 25:] == 7).all()
    assert run_rung(9, a[:0], b, c[:0]).clean


# ---- files -----------------------------------------------------------------------------------


def test_a_cuda_file():
    code, out, err = run("k.cu --entry scale --grid 2 --block 64 --arg f32:100:ones --arg f32:100:nan --arg 1.5 "
                         "--arg 90 --macro TIMES=3")
    assert (code, err) == (0, "")
    assert array(out, 0) == ["float32", "100", "1", "1", "1", "0"]
    assert array(out, 1) == ["float32", "100", "4.5", "4.5", "4.5", "10"]
    assert "No fault found." in out


def test_a_ptx_file():
    code, out, err = run("k.ptx --entry fill --grid 3 --block 32 --arg f64:80:-1 --arg 70 --arg 2.25e3")
    assert (code, err) == (0, "")
    assert array(out, 0) == ["float64", "80", "-1", "1968.62", "2250", "0"]


def test_npy_files_are_read_and_left_alone():
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
    np.save("x.npy", x)
    np.save("n.npy", np.int32(32))
    code, out, _ = run("k.cu --entry scale --grid 1 --block 32 --arg x.npy --arg x.npy --arg 2 --arg n.npy")
    assert code == 0
    assert array(out, 0)[1] == "4x8" and array(out, 0)[2] == f"{x.min():.6g}"
    assert array(out, 1)[2:5:2] == [f"{2 * x.min():.6g}", f"{2 * x.max():.6g}"]
    assert (np.load("x.npy") == x).all()


def test_grids_and_blocks_of_three_dimensions():
    code, out, _ = run("k.cu --entry volume --grid 2x3x2 --block 4x2x3 --arg u32:6x6x8")
    assert code == 0
    assert array(out, 0)[2:5] == ["0", f"{10000 * 2.5 + 100 * 2.5 + 3.5:.6g}", "50507"]


def test_dynamic_shared_memory():
    words = "k.cu --entry reverse --grid 1 --block 64 --arg f32:64:arange --no-source"
    assert run(f"{words} --shared 256")[0] == 0
    code, _, err = run(f"{words} --shared 128")
    assert code == 1 and "shared_out_of_bounds" in err


def test_the_json_report():
    code, out, _ = run("k.cu --entry turn --grid 1 --block 32 --arg f32:32x32:normal --arg f32:32x32 --json r.json")
    assert code == 0 and "Report written to r.json" in out
    data = json.loads(Path("r.json").read_text())
    record_schema.validate(data)
    assert set(data) <= set(record_schema.SCHEMA["properties"])
    assert data["command"].startswith("peakgemm simulate k.cu --entry turn")
    report = data["report"]
    assert (report["kernel"], report["faults"], report["stopped"]) == ("turn", [], "")
    assert report["counters"]["shared_wavefronts"] == counter(out, "shared wavefronts") == 32 * 32 + 32
    store = next(item for item in report["instructions"] if item["opcode"].startswith("st.shared"))
    assert (store["space"], store["line"]) == ("shared", marked("conflicts"))
    for name, wavefronts in (("conflicts", "1024"), ("rows", "32")):  # the listing has them on their lines
        cells = next(line for line in out.splitlines() if f"[{name}]" in line).split()
        assert cells[1:6] == [wavefronts, "32", "128", "128", str(marked(name))]
    assert "executed  wavefronts      ideal     sectors      ideal" in out


# ---- faults ----------------------------------------------------------------------------------


def test_a_fault_is_exit_code_1_at_its_line():
    code, out, err = run("k.cu --entry scale --grid 2 --block 64 --arg f32:128 --arg f32:100 --arg 1 --arg 128 "
                         "--json r.json")
    assert code == 1 and "No fault found." not in out
    assert f"k.cu:{marked('scale')}: out_of_bounds: 4-byte write outside every array: argument 1 (400 bytes)" in err
    assert "(28 times)" in err and "Traceback" not in err
    lines = out.splitlines()
    (place,) = (i for i, line in enumerate(lines) if "[scale]" in line)
    assert lines[place + 1].strip().startswith("^ out_of_bounds")
    data = json.loads(Path("r.json").read_text())
    record_schema.validate(data)
    assert data["report"]["faults"][0]["line"] == marked("scale")


# ---- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("42", 42), ("-7", -7), ("+3", 3), ("1.5", 1.5), ("-1e-3", -1e-3),
                                             ("inf", float("inf")), ("2.", 2.0)])
def test_scalar_arguments(text, value):
    found = argument(text, 0)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_array_arguments(dtype):
    want = np.dtype(DTYPES[dtype])
    for fill, values in (("zeros", [0] * 6), ("ones", [1] * 6), ("arange", range(6)), ("7", [7] * 6)):
        found = argument(f"{dtype}:2x3:{fill}", 0)
        assert found.dtype == want and found.shape == (2, 3) and found.ravel().tolist() == list(values)
    assert not argument(f"{dtype}:5", 0).any() and argument(f"{dtype}:0x4:ones", 0).shape == (0, 4)


def test_fills_for_floats():
    assert np.isnan(argument("f32:4:nan", 0)).all() and np.isinf(argument("f16:4:1e9", 0)).all()
    assert (argument("f64:3:-2.5e-3", 0) == -2.5e-3).all()
    uniform = argument("f64:1000:uniform", 3)
    assert 0 <= uniform.min() < 0.1 and 0.9 < uniform.max() < 1
    normal = argument("f32:1000:normal", 3)
    assert abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.1
    assert (normal == argument("f32:1000:normal", 3)).all() and (normal != argument("f32:1000:normal", 4)).any()


# ---- mistakes --------------------------------------------------------------------------------

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { "
SCALE = "k.cu --entry scale --grid 1 --block 32"
FOUR = "--arg f32:32 --arg f32:32 --arg 1 --arg 32"


@pytest.mark.parametrize(("words", "says"), [
    (f"k.cu --entry nosuch --grid 1 --block 32 {FOUR}", ["k.cu holds no kernel 'nosuch'", "scale, turn, spin"]),
    ("k.ptx --grid 1 --block 32", ["holds 2 kernels (fill, nothing)"]),
    (f"{SCALE} --arg f32:32", ["scale takes 4 arguments", ".u64", ".f32", "1 were given"]),
    (f"{SCALE} --arg f32:32 --arg f32:32 --arg 1 --arg 1.5", ["argument 3", ".u32) is an integer, 1.5"]),
    (f"{SCALE} --arg f32:32 --arg f32:32 --arg 1 --arg f32:32", ["argument 3", "is an array", ".u32"]),
    (f"{SCALE} --arg f32:32 --arg f32:32 --arg 1 --arg 9999999999", ["argument 3", "9999999999 does not fit 32 bits"]),
    (f"{SCALE} {FOUR} --shared 300000", ["300000 bytes of shared memory per block, sm_90 has 232448"]),
    (f"{SCALE} {FOUR} --shared -4", ["shared_bytes = -4 is negative"]),
    (f"{SCALE} {FOUR} --max-memory 1000", ["needs about", "max_memory allows 1,000"]),
    (f"{SCALE} --arg f32:9000x9000:normal {FOUR} --max-memory 1000000", ["takes 972,000,000 bytes", "1,000,000"]),
    ("12 --size 100000", ["needs over 240,000,000,000 bytes, max_memory allows 4,294,967,296"]),
    ("gone.cu --grid 1 --block 32", ["gone.cu is not a file", "a rung such as 12"]),
    ("k.cu --entry scale --block 32", ["k.cu needs --grid and --block, such as"]),
    ("k.cu --grid 1x --block 32", ["--grid '1x' is not X, XxY or XxYxZ"]),
    (f"k.cu --entry scale --grid 0 --block 32 {FOUR}", ["grid = [0] must be one to three positive integers"]),
    (f"k.cu --entry scale --grid 1 --block 64x32 {FOUR}", ["2048 threads, sm_90 allows 1024"]),
    (f"{SCALE} --arg f32:32:gauss {FOUR}", ["fill 'gauss' is neither zeros, ones, nan, arange, uniform, normal nor"]),
    (f"{SCALE} --arg s32:32:normal {FOUR}", ["fill 'normal' is for floats, the array is int32"]),
    (f"{SCALE} --arg i32:32:ones {FOUR}", ["--arg 'i32:32:ones' is not an integer", "dtypes: f16", "fills: zeros"]),
    (f"{SCALE} --arg gone.npy {FOUR}", ["--arg gone.npy: cannot be read", "No such file"]),
    (f"{SCALE} --arg text.npy {FOUR}", ["--arg text.npy: cannot be read as a .npy file"]),
    (f"{SCALE} {FOUR} --macro TIMES=1.5", ["--macro 'TIMES=1.5' is not NAME=INTEGER"]),
    ("k.ptx --entry nothing --grid 1 --block 32 --macro A=1", ["--macro: for a .cu file only"]),
    (f"{SCALE} {FOUR} --size 64 --beta 1", ["--beta: for a rung or matmul only, not for k.cu"]),
    (f"{SCALE} {FOUR} --size 64", ["--size 64: k.cu has no launch in which it could stand"]),
    ("12 --size 64 --grid 1 --arg 3", ["--grid, --arg: for a file only, not for 12"]),
    ("broken.ptx --grid 1 --block 32", ["PTX line 4", "'%rd1'"]),
    ("binary.ptx --grid 1 --block 32", ["binary.ptx is not text", "byte 4"]),
    ("unknown.ptx --grid 1 --block 32", ["PTX line 5", "frobnicate"]),
    (f"{SCALE} {FOUR} --arch sm_42", ["unknown architecture 'sm_42'"]),
    (f"{SCALE} {FOUR} --json gone/r.json", ["cannot write gone/r.json"]),
    ("nosuch", ["unknown rung 'nosuch'", "14 large_tile"]),
    ("3,4", ["one rung and one shape, not 2 and 1"]),
    ("3 --size 0", ["'0': each size must lie in"]),
    ("13 --arch sm_75", ["cp.async needs sm_80 or later, not sm_75"]),
])
def test_mistakes(words, says):
    Path("broken.ptx").write_text(HEAD + "ld.param.u64 %rd1 }")
    Path("unknown.ptx").write_text(HEAD + ".reg .b32 %r<3>;\n frobnicate.b32 %r1, %r2; ret; }")
    Path("binary.ptx").write_bytes(b"\x7fELF\xff")
    Path("text.npy").write_text("no array")
    code, out, err = run(words)
    assert (code, out) == (2, "")
    assert err.startswith("peakgemm: ")
    assert err.count("peakgemm: ") == err.count("\n") == 1
    for text in says:
        assert text in err


def test_a_source_that_does_not_compile():
    Path("bad.cu").write_text('extern "C" __global__ void k() { nonsense; }')
    code, out, err = run("bad.cu --grid 1 --block 1")
    assert (code, out) == (2, "")
    assert err.startswith("peakgemm: bad.cu does not compile for sm_90") and 'identifier "nonsense" is undefined' in err


def test_a_number_too_large_for_a_float():
    with pytest.raises(InvalidValue, match=r"argument 2 .* too large for a float"):
        simulate(CU, entry="scale", grid=1, block=1, args=[None, None, 10**400, 0])
