"""``peakgemm inspect``: rungs, the library, cubins, PTX and CUDA C++; figures, listing, comparison, page, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import record_schema
from commands import ROOT, fits, here, run
from peakgemm.errors import MissingComponent
from peakgemm.kernels.registry import rung
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.source import assemble
from peakgemm.sass import encoding
from peakgemm.sass.listing import nvdisasm
from peakgemm.sass.program import Program
from peakgemm.tools.bench.records import runs_of
from peakgemm.tools.inspect.listing import read
from peakgemm.tools.inspect.named import named
from peakgemm.tools.inspect.view import view
from rung_code import build
from sass_cases import FIXTURES

__all__ = ["here", "run"]

TILE = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "ALIGNED": 1}


def record(path: Path) -> list[dict[str, Any]]:
    """The kernels of a record of inspect, which fits the schema."""
    data = json.loads(path.read_text())
    record_schema.validate(data)
    return list(data["inspect"])


def tile_of(folder: Path, kind: str, arch: str) -> Path:
    """The fixture's kernel, compiled, as anyone's would lie there."""
    path = folder / f"tile.{kind}"
    path.write_bytes(compile_source(assemble(FIXTURES / "gemm_tile.cu"), "gemm_tile", arch, TILE, kind).code)
    return path


@pytest.fixture
def tile(here: Path) -> Path:
    return tile_of(here, "cubin", "sm_86")


# Rungs and kernels of the library


def test_a_rung(here: Path, run) -> None:
    code, out, err = run("inspect", "12", "--json", "twelve.json")
    assert (code, err) == (0, "")
    (facts,) = record(here / "twelve.json")
    compiled = build(rung(12), rung(12).read(facts["subject"]["config"]), "sm_90")
    assert facts["subject"]["kind"] == "rung" and facts["subject"]["config"]["aligned"]
    assert (facts["resources"]["registers"], facts["resources"]["blocks_per_sm"]) == (compiled.registers, 2)
    loop = facts["loop"]
    # 8 k-steps of 8 x 8 results, four LDS.128 for each, and one float4 of each tile a thread.
    assert (loop["ffma"], loop["opcodes"]["FFMA"], loop["pipes"]["fma"] >= 512) == (512, 512, True)
    assert loop["widths"]["LDS"] == {"128": 32} and loop["widths"]["LDG"] == {"128": 2}
    assert loop["profiler"]["smsp__inst_executed.sum"] == loop["instructions"] == sum(loop["pipes"].values())
    assert loop["profiler"]["smsp__sass_inst_executed_op_shared_ld.sum"] == 32
    assert sum(loop["stalls"].values()) == loop["instructions"]
    assert 64 + 16 < loop["live_registers"] <= compiled.registers
    assert 1 <= facts["registers_read"]["cycles_per_ffma"] < 2
    assert facts["roofline"]["issue_ceiling"] < facts["registers_read"]["ceiling"]
    for text in ("rung 12 warp tile, 128x128x8/8x8", "512 (", "of the issue slots", "cycles an FFMA", "modelled"):
        assert text in out
    assert run("inspect", "show", "12")[1] == run("inspect", "--arch", "sm_90", "12")[1]


@pytest.mark.parametrize(("words", "says"), [
    (["fp16x3"], ["emulated fp16x3", "warpgroup-wide tensor instructions", "HGMMA"]),
    (["matmul", "--shape", "2048x2048x2048"], ["on sm_90", "candidates"]),
    (["small", "--shape", "32x32x32*500"], ["ffma small"]),
    (["chain", "--shape", "4x4096x4096:NT"], ["ffma chain, 4x32x64/1x2 8st"]),
    (["specialised", "--arch", "sm_80", "--config", "128x128x16/8x8 8st db"], ["128x128x16/8x8 8st db, on sm_80"]),
])
def test_the_library(run, words: list[str], says: list[str]) -> None:
    code, out, _ = run("inspect", *words)
    assert code == 0
    for text in says:
        assert text in out


def test_tensor_cores_have_no_ceiling_of_ffmas() -> None:
    facts = view(named("bf16x9", "sm_90")).facts
    assert facts["loop"]["tensor"] > 0
    assert (facts["roofline"]["bound_tflops"], facts["roofline"]["issue_tflops"]) == (None, None)
    # Threads that compute take the registers of those that copy.
    assert facts["notes"] == ["setmaxnreg deals the registers anew: 232, 40 a thread."]


def test_counts_equal_the_profilers() -> None:
    """Nsight Compute's counters of a record: what a warp gains from K = 256 to 4096 is turns of the main loop."""
    runs = {tuple(each["shape"]): each["rungs"]
            for each in runs_of(json.loads((ROOT / "results/h100/counters.json").read_text()))}
    names = {"smsp__inst_executed.sum": "instructions", "smsp__sass_inst_executed_op_shared_ld.sum": "shared_loads",
             "smsp__sass_inst_executed_op_shared_st.sum": "shared_stores",
             "smsp__sass_inst_executed_op_ldgsts.sum": "ldgsts"}
    # Left out is rung 12, of which the record counts 615 a turn where the loop now has 608; its loads and stores agree.
    for number in (3, 5, 8, 11, 13, 14):
        seen = view(named(str(number), "sm_90"))
        loop, config = seen.facts["loop"], seen.subject.config
        assert config is not None
        turns = (4096 - 256) * config.tm * config.tn / loop["ffma"]
        gained = dict.fromkeys(names.values(), 0.0)
        for side, sign in ((4096, 1), (256, -1)):
            warps = side * side // (config.bm * config.bn) * config.threads // 32
            counts = next(row["ncu"] for row in runs[side, side, side] if row["number"] == number)
            for name in gained:
                gained[name] += sign * counts[name] / warps / turns
        for metric, name in names.items():
            assert loop["profiler"].get(metric, 0) == pytest.approx(gained[name], abs=1e-9), (number, metric)


# Listings


def test_live_registers_are_what_nvdisasm_counts() -> None:
    subject = named("15", "sm_90")
    shown = nvdisasm(subject.cubin.data, "sm_90", "-c", "-lrm", "count")
    counted = {int(at, 16) // 16: int(count) for at, count in
               re.findall(r"^\s*/\*([0-9a-f]{4,})\*/.*//\s*\|\s*(\d+)\s*\|", shown, re.M)}
    live = read(subject).live
    assert len(live) > 50 and {place: counted[place] for place in live} == live


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_lines_are_linked_to_the_ptx_that_made_them(arch: str) -> None:
    subject = named("10", arch)
    bare, listing = read(subject), read(subject, with_text=True)
    assert not any(line.text for line in bare.lines) and all(line.text for line in listing.lines)
    assert [(line.word, line.live, line.reads, line.extra) for line in bare.lines] == [
        (line.word, line.live, line.reads, line.extra) for line in listing.lines]
    for line in listing.lines:
        if line.word.is_ffma:
            assert line.ptx is not None and listing.ptx[line.ptx - 1].startswith("fma.rn.f32")
            assert line.file is not None and line.text.startswith("FFMA ")
            assert line.live is not None and line.live <= 255
            assert line.text.count(".reuse") == line.word.control.reuse.bit_count()


def test_macros_and_listing(run) -> None:
    macros = [word for name, value in TILE.items() for word in ("--macro", f"{name}={value}")]
    code, out, _ = run("inspect", str(FIXTURES / "gemm_tile.cu"), *macros, "--listing")
    ffmas = [line for line in out.splitlines() if re.match(r"0x[0-9a-f]{6} ", line) and " FFMA " in line]
    assert (code, len(ffmas)) == (0, 512) and "acc[i][j] += a[i] * b[j]" in out
    # Address, control bits, SASS, banks, live registers, PTX, source.
    first = re.compile(r"0x[0-9a-f]{6} \S+:\S:\S:[-Y]:\d+ +FFMA .+ [r01.!]{3,6} +\d+  fma\.rn\.f32 .*; +"
                       r"gemm_tile\.cu:\d+  ")
    assert sum(bool(first.match(line)) for line in ffmas) > 400


def test_what_needs_no_nvdisasm_and_an_instruction_that_no_table_has(monkeypatch: pytest.MonkeyPatch, run) -> None:
    subject = named("17", "sm_90")
    known = encoding._entries("sm_90")
    tensor = {word.opcode for word in Program.of(subject.cubin).words if word.name == "HGMMA"}
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "_entries",
                      lambda arch: {code: entry for code, entry in known.items() if code not in tensor})
        facts = view(subject).facts  # nvdisasm names it; of its registers nothing is known
    assert facts["loop"]["opcodes"]["HGMMA"] == facts["loop"]["tensor"] > 0
    assert any("Not in the table of encodings" in note for note in facts["notes"])

    def missing() -> str:
        raise MissingComponent("nvdisasm is not installed")

    monkeypatch.setattr("peakgemm.sass.listing.find_nvdisasm", missing)
    code, out, _ = run("inspect", "8")
    assert code == 0 and "live registers" in out and "cycles an FFMA" in out
    code, _, err = run("inspect", "8", "--listing")
    assert code == 2 and "nvdisasm is not installed" in err


# Files of others


def test_a_cubin_of_others(tile: Path, run) -> None:
    code, _, err = run("inspect", str(tile), "--threads", "256", "--shared", "0", "--json", f"{tile}.json")
    assert (code, err) == (0, "")
    (facts,) = record(Path(f"{tile}.json"))
    assert facts["subject"] == {"label": "tile.cubin: gemm_tile on sm_86", "kind": "cubin", "function": "gemm_tile",
                                "arch": "sm_86", "config": None, "config_label": None, "others": []}
    assert facts["resources"]["spill_bytes"] is None and facts["resources"]["occupancy"] > 0
    assert facts["loop"]["ffma"] == 512
    # What the loop loads: a float4 of each tile for 1024 FLOP.
    assert facts["roofline"]["bytes_per_flop"] == 32 / 1024
    out = run("inspect", str(tile))[1]
    assert "unknown dynamic" in out and "Dynamic shared memory is not in a cubin" in out


def test_ptx(here: Path, run) -> None:
    pytest.importorskip("cuda.bindings.nvjitlink")
    path = str(tile_of(here, "ptx", "sm_80"))
    assert run("inspect", path, "--arch", "sm_89", "--json", "89.json")[0] == 0
    (facts,) = record(here / "89.json")
    assert (facts["subject"]["kind"], facts["subject"]["arch"]) == ("ptx", "sm_89")
    assert (facts["loop"]["ffma"], facts["resources"]["spill_bytes"]) == (512, 0)
    code, _, err = run("inspect", path, "--arch", "sm_75")
    assert code == 2 and "It was made for sm_80: pass --arch sm_80" in err
    code, out, _ = run("inspect", path, "--arch", "sm_110")  # which has no model
    assert code == 0 and "512 (" in out and "live registers" in out
    assert "no rule for the register reads of 'sm_110'" in out
    assert "sm_110 is not in the table of architectures: no occupancy, no roofline" in out


def test_a_kernel_without_ffma_or_without_a_loop(here: Path, run) -> None:
    (here / "own.cu").write_text('extern "C" __global__ void scale(double* p, double s) {'
                                 " for (int i = 0; i < 1000; ++i) p[i] *= s; }\n"
                                 'extern "C" __global__ void once(float* p) { p[threadIdx.x] += 1; }\n')
    code, out, _ = run("inspect", "own.cu", "--kernel", "scale", "--arch", "sm_80")
    assert code == 0 and "DMUL" in out and "no loop holds an FFMA: the loop with the most instructions" in out
    assert "the kernel has no loop" in run("inspect", "own.cu", "--kernel", "once")[1]


# Comparison and page


def test_compare(tile: Path, here: Path, run) -> None:
    code, out, _ = run("inspect", "8", "--compare", "9", "--json", "two.json")
    assert code == 0 and fits(out)
    assert [facts["subject"]["label"].split(",")[0] for facts in record(here / "two.json")] == [
        "rung 08 transposed a", "rung 09 quadrants"]
    lines = {line[2:24].strip(): line for line in out.splitlines() if line.startswith("  ")}
    assert " * " in lines["registers a thread"]
    assert " * " not in lines["threads a block"] and lines["threads a block"].split()[-2:] == ["256", "256"]
    code, out, _ = run("inspect", "8", "--arch", "sm_90", "--compare", str(tile), "--shared", "0")
    assert code == 0 and "rung 08 transposed a" in out and "gemm_tile on sm_86" in " ".join(out.split())


def data_of(page: Path) -> list[dict[str, Any]]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    return list(json.loads(data))


def test_page(here: Path, run) -> None:
    assert run("inspect", "14", "--html", "page.html")[0] == 0
    assert not re.search(r"https?://|<link|@import|src=|url\(", (here / "page.html").read_text())  # nothing is fetched
    (page,) = data_of(here / "page.html")
    assert len(page["sass"]) == len(read(named("14", "sm_90")).lines)
    known = {f"p{number}" for number, _ in page["ptx"]} | {
        f"s{place}:{file['first'] + offset}" for place, file in enumerate(page["source"])
        for offset in range(len(file["lines"]))}
    assert {key for line in page["sass"] for key in line["keys"]} <= known
    assert any("acc[i][j]" in line for file in page["source"] for line in file["lines"])
    # A name cannot end the script.
    (here / "sly.cu").write_text('// </script><script>alert(1)</script>\nextern "C" __global__ void sly(float* p) {\n'
                                 "  for (int i = 0; i < 9000; ++i) p[i] += 1;  // </script>\n}\n")
    assert run("inspect", "sly.cu", "--html", "sly.html")[0] == 0
    assert any("</script>" in line for file in data_of(here / "sly.html")[0]["source"] for line in file["lines"])


def test_map(run) -> None:
    code, out, _ = run("inspect", "map", "--arch", "sm_52")
    assert code == 0 and fits(out)
    assert "This map: 0 of 64 FFMAs wait" in out and "The naive map: 60 of 64" in out


# Mistakes


@pytest.mark.parametrize(("words", "says"), [
    ("nosuch", ["'nosuch' is no rung (00-1", ", or a name", "matmul, specialised", ".cubin, .ptx or .cu"]),
    ("99", ["unknown rung 99"]), ("gone.cubin", ["gone.cubin is not a file"]), ("matmul", ["add --shape"]),
    ("12 --arch sm_42", ["unknown architecture 'sm_42'"]), ("15 --arch sm_80", ["setmaxnreg needs sm_90"]),
    ("12 --kernel x", ["are for files, not for 12"]), ("12 --config 1x1", ["no configuration '1x1'", "128x128x8/8x8"]),
    ("specialised --config x", ["no configuration 'x'"]), ("12 --html gone/x.html", ["cannot write gone/x.html"]),
    ("map --tile 3", ["'3' is not ROWSxCOLUMNS"]), ("map --arch sm_42", ["no rule for the register reads"]),
    ("tile.cubin --arch sm_90", ["tile.cubin is compiled for sm_86 already"]),
    ("cut.cubin", ["truncated"]), ("strange.cubin", ["not CUDA"]), ("text.cubin", ["5 bytes"]),
])
def test_mistakes(here: Path, tile: Path, run, words: str, says: list[str]) -> None:
    for name, data in (("cut", tile.read_bytes()[:3000]), ("strange", b"\x7fELF\x02\x01" + bytes(200)),
                       ("text", b"hello")):
        (here / f"{name}.cubin").write_bytes(data)
    code, out, err = run("inspect", *words.split())
    assert (code, out) == (2, "")
    assert err.startswith("peakgemm: ") and err.count("\n") == 1
    for text in says:
        assert text in err
