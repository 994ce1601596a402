"""SASS listings: parsing, the main loop, the mix, and what ptxas makes of two small kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from peakgemm.errors import InvalidValue, MissingComponent
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.source import assemble
from peakgemm.sass import listing as sass
from peakgemm.sass.facts import loads_in_a_row, static_facts
from peakgemm.sass.listing import CLASSES, Instruction, classify, disassemble, mix, parse, width
from peakgemm.sass.loops import main_loop

FIXTURES = Path(__file__).parents[1] / "support" / "fixtures"
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ALIGNED = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "ALIGNED": 1}
GUARDED = {"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4, "ALIGNED": 0}


@pytest.fixture(scope="module")
def listing() -> tuple[Instruction, ...]:
    return parse((FIXTURES / "out_of_line.sass").read_text())


def one(text: str) -> Instruction:
    return parse(f"        /*0000*/                   {text} ;")[0]


def cubin(name: str, arch: str, macros: dict[str, int] | None = None) -> bytes:
    return compile_source(assemble(FIXTURES / f"{name}.cu"), name, arch, macros).code


def at(listing: tuple[Instruction, ...], address: int) -> Instruction:
    return next(i for i in listing if i.function == "gemm" and i.address == address)


def test_parse(listing: tuple[Instruction, ...]) -> None:
    assert [i.function for i in listing] == ["small"] * 5 + ["gemm"] * 33
    assert [i.address for i in listing[5:]] == list(range(0, 33 * 16, 16))
    branch = at(listing, 0x40)
    assert (branch.predicate, branch.opcode, branch.operands) == ("@!P0", "BRA", ("`(.L_x_5)",))
    assert branch.text == "@!P0 BRA `(.L_x_5)"
    # A label names one address in each function.
    assert branch.target == 0x160
    assert at(listing, 0x110).target == 0x30
    assert next(i for i in listing if i.opcode == "BRA").target == 0x10


def test_parse_drops_scheduling_notes_and_comments(listing: tuple[Instruction, ...]) -> None:
    assert at(listing, 0x30).operands == ("B0", "`(.L_x_2)")
    assert at(listing, 0x50).operands == ("R4", "desc[UR8][R2.64+0x10]")
    assert at(listing, 0xf0).operands == ("R22", "-R13", "|R17|", "R8")


def test_parse_source_lines(listing: tuple[Instruction, ...]) -> None:
    assert (listing[0].file, listing[0].line) == ("/src/small.cu", 3)
    # A section starts without a line; of an inlined call the last line printed counts.
    assert (at(listing, 0x10).file, at(listing, 0x10).line) == (None, None)
    assert (at(listing, 0x30).line, at(listing, 0x40).line) == (20, 22)


def test_main_loop_follows_control_flow(listing: tuple[Instruction, ...]) -> None:
    loop = main_loop(listing)
    assert loop is not None
    # In: the copy loop inside, and the block out of line that BSYNC B0 joins to 0x80. Out: the store,
    # which reuses B0, the routine, and the function with fewer FFMA.
    assert loop.header == 0x30
    assert [i.address for i in loop.instructions] == [*range(0x30, 0x120, 16), 0x160, 0x170, 0x180]
    assert {i.function for i in loop.instructions} == {"gemm"}
    assert loop.code_bytes == 18 * 16


def test_no_main_loop(listing: tuple[Instruction, ...]) -> None:
    assert main_loop(()) is None
    straight = tuple(i for i in listing if i.base not in ("BRA", "CALL"))
    assert main_loop(straight) is None


def test_innermost_loop_wins() -> None:
    lines = ["MOV R1, RZ", "FMUL R2, R2, R3", "FFMA R4, R5, R6, R4", "FFMA R4, R5, R6, R4", "@P0 BRA `(.inner)",
             "FFMA R4, R5, R6, R4", "@P1 BRA `(.outer)", "EXIT"]
    text = "\n".join(f"{'.outer:' if n == 1 else '.inner:' if n == 2 else ''}\n/*{16 * n:04x}*/ {line} ;"
                     for n, line in enumerate(lines))
    loop = main_loop(parse(text))
    assert loop is not None
    assert [i.address for i in loop.instructions] == [0x20, 0x30, 0x40]


def test_mix(listing: tuple[Instruction, ...]) -> None:
    loop = main_loop(listing)
    assert loop is not None
    found = mix(loop.instructions)
    assert (found.instructions, found.ffma) == (18, 3)
    assert found.ffma_fraction == 3 / 18
    # The LDS that never runs is padding, not an access.
    assert found.widths == {"LDG": {"128": 1}, "LDS": {"64": 1, "128": 1}, "STS": {"32": 1, "128": 1},
                            "LDGSTS": {"128": 1}}
    assert found.classes == {"ffma": 3, "float": 1, "tensor": 0, "integer": 0, "memory": 6, "barrier": 1, "branch": 6,
                             "move": 0, "other": 1}
    assert mix(()).ffma_fraction == 0.0


@pytest.mark.parametrize(("text", "kind"), [
    ("FFMA R0, R1, R2, R3", "ffma"), ("FFMA2 R0, R2.F32x2.HI_LO, R4.F32x2.HI_LO, R0.F32x2.HI_LO", "ffma"),
    ("FADD R0, R1, R2", "float"), ("FSETP.GT.AND P0, PT, R1, RZ, PT", "float"), ("MUFU.RCP R0, R1", "float"),
    ("HFMA2.MMA R0, R1, R2, R3", "float"), ("DFMA R0, R2, R4, R6", "float"), ("I2F.RP R0, R1", "float"),
    ("UFMUL UR4, UR5, UR6", "float"), ("F2FP.BF16.F32.PACK_AB R0, R1, R2", "float"),
    ("HFMA2.MMA R0, -RZ, RZ, 0, 0", "move"), ("HFMA2 R0, -RZ, RZ, 1.875, 0", "move"), ("CS2R R8, SRZ", "move"),
    ("IMAD.MOV.U32 R0, RZ, RZ, R1", "move"), ("IMAD.U32 R2, RZ, RZ, UR6", "move"), ("UMOV UR4, 0x400", "move"),
    ("S2UR UR5, SR_CTAID.X", "move"), ("R2UR UR4, R0", "move"),
    ("IMAD R0, R1, R2, RZ", "integer"), ("UIADD3 UR4, UR4, 0x1, URZ", "integer"), ("FLO.U32 R0, R1", "integer"),
    ("IADD.64 R2, R2, R4", "integer"), ("LOP3.LUT R0, R1, 0xf, RZ, 0xc0, !PT", "integer"), ("SEL R0, R1, R2, P0",
     "integer"), ("ULEA UR4, UR5, UR4, 0x18", "integer"), ("SHF.R.U32.HI R0, RZ, 0x5, R1", "integer"),
    ("VIADD R6, R6, 0xfffffff0", "integer"), ("USEL UR4, UR5, UR6, UP0", "integer"), ("REDUX.SUM UR4, R0", "integer"),
    ("LDS.128 R0, [R1]", "memory"), ("ULDC.64 UR8, c[0x0][0x208]", "memory"), ("LDCU UR4, c[0x0][0x380]", "memory"),
    ("SHFL.IDX PT, R0, R1, RZ, 0x1f", "memory"), ("UTMALDG.2D [UR8], [UR4]", "memory"), ("STL [R1], R2", "memory"),
    ("RED.E.ADD.F32 [R2.64], R0", "memory"), ("ATOMG.E.ADD PT, R0, [R2.64], R1", "memory"),
    ("BAR.SYNC.DEFER_BLOCKING 0x0", "barrier"), ("LDGDEPBAR", "barrier"), ("DEPBAR.LE SB0, 0x1", "barrier"),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", "barrier"), ("USETMAXREG.DEALLOC.CTAPOOL 0x18", "barrier"),
    ("BRA `(.L_x_0)", "branch"), ("BSSY B0, `(.L_x_0)", "branch"), ("EXIT", "branch"),
    ("HMMA.16816.F32 R0, R4, R8, R0", "tensor"), ("HGMMA.64x128x8.F32.TF32 R24, gdesc[UR8], R24", "tensor"),
    ("NOP", "other"), ("@!PT LDS RZ, [RZ]", "other"),
])
def test_classify(text: str, kind: str) -> None:
    assert classify(one(text)) == kind
    assert kind in CLASSES


@pytest.mark.parametrize(("text", "bits"), [
    ("LDG.E R0, desc[UR4][R2.64]", 32), ("LDG.E.U8 R0, desc[UR4][R2.64]", 8), ("LDG.E.S16 R0, [R2.64]", 16),
    ("LDG.E.64.CONSTANT R0, desc[UR4][R2.64]", 64), ("LDG.E.ENL2.256 R0, R4, desc[UR4][R8.64]", 256),
    ("LDGSTS.E.BYPASS.LTC128B.128 [R0], desc[UR4][R2.64]", 128), ("LDGSTS.E.LTC128B [R0], desc[UR4][R2.64]", 32),
])
def test_width(text: str, bits: int) -> None:
    assert width(one(text)) == bits


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_unrolled_kernel(arch: str) -> None:
    facts = static_facts(cubin("gemm_tile", arch, ALIGNED), arch)
    json.dumps(facts, allow_nan=False)
    # 8 k-steps of 8x8, two LDS.128 for each fragment, one float4 of each tile a thread.
    assert facts["loop_ffma"] == 512
    assert facts["widths"] == {"LDG": {"128": 2}, "LDS": {"128": 32}, "STS": {"128": 2}}
    assert facts["loop_bytes"] == 16 * facts["loop_instructions"]
    assert facts["ffma_fraction"] == 512 / facts["loop_instructions"]
    assert 0.85 < facts["ffma_fraction"] < 0.95
    assert sum(facts["classes"].values()) == facts["loop_instructions"]
    assert 0.5 <= facts["bank_ceiling"] <= 1
    # With 16 lanes a sub-partition ptxas all but avoids conflicts; with 32 it cannot.
    if arch in ("sm_75", "sm_80"):
        assert 2 <= facts["bank_cycles_per_ffma"] < 2.1
    else:
        assert 1 < facts["bank_cycles_per_ffma"] < 2


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_guarded_kernel(arch: str) -> None:
    code = parse(disassemble(cubin("gemm_tile", arch, GUARDED), arch))
    loop = main_loop(code)
    assert loop is not None
    found = mix(loop.instructions)
    # All 16 k-steps of 4x4 in one loop, whatever loops the copies became.
    assert found.ffma == sum(i.is_ffma for i in code) == 256
    assert found.widths["LDS"] == {"128": 32}
    assert set(found.widths["LDG"]) == set(found.widths["STS"]) == {"32"}
    assert found.classes["barrier"] == 2


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_unrolled_by_the_compiler(arch: str) -> None:
    code = parse(disassemble(cubin("dot_naive", arch), arch))
    loop = main_loop(code)
    assert loop is not None
    found = mix(loop.instructions)
    # ptxas unrolls over k (4 to 16 times) and leaves remainder loops and the loop over batches around.
    assert found.ffma in (4, 8, 16)
    assert found.ffma < sum(i.is_ffma for i in code)
    assert found.widths == {"LDG": {"32": 2 * found.ffma}}


def test_source_lines_of_a_cubin() -> None:
    source = (FIXTURES / "gemm_tile.cu").read_text().splitlines()
    code = parse(disassemble(cubin("gemm_tile", "sm_90", ALIGNED), "sm_90"))
    ffmas = [i for i in code if i.is_ffma]
    assert {i.file and Path(i.file).name for i in ffmas} == {"gemm_tile.cu"}
    assert all(i.line is not None and "acc[i][j] += a[i] * b[j]" in source[i.line - 1] for i in ffmas)


@pytest.mark.parametrize(("texts", "most"), [
    (["FFMA R0, R1, R2, R0"], 0), (["LDS.128 R4, [R1]", "FFMA R0, R1, R2, R0", "LDS R9, [R1]"], 1),
    (["LDS R4, [R1]", "LDS.64 R6, [R1]", "FFMA R0, R1, R2, R0", "LDS R8, [R1]", "@P0 LDS R9, [R1]", "LDS R3, [R1]"], 3),
    (["@!PT LDS RZ, [RZ]", "@!PT LDS RZ, [RZ]", "LDGSTS.E [R1], [R2.64]", "LDS R8, [R1]"], 1),
    (["LDS R8, [R1]", "LDSM.16.M88.4 R4, [R1]", "LDG.E R4, [R2.64]", "LDS R8, [R1]"], 1),
])
def test_loads_in_a_row(texts: list[str], most: int) -> None:
    assert loads_in_a_row([one(text) for text in texts]) == most


def test_no_loop_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peakgemm.sass.facts.disassemble", lambda cubin, arch: "/*0000*/ EXIT ;")
    assert set(static_facts(b"", "sm_90").values()) == {None}


def test_not_a_cubin() -> None:
    with pytest.raises(InvalidValue, match="not a cubin"):
        disassemble(b"//\n.version 8.8\n", "sm_90")
    with pytest.raises(InvalidValue, match="sm_42"):
        disassemble(b"\x7fELF", "sm_42")


def test_nvdisasm_refuses() -> None:
    with pytest.raises(MissingComponent, match="pip install --upgrade nvidia-cuda-nvdisasm"):
        disassemble(b"\x7fELF" + bytes(60), "sm_90")


def test_nvdisasm_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes the import fail.
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingComponent, match="pip install nvidia-cuda-nvdisasm"):
        disassemble(b"\x7fELF", "sm_90")


def test_nvdisasm_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho '/*0000*/ EXIT ;'\n")
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool.chmod(0o755)
    assert parse(disassemble(b"\x7fELF", "sm_90"))[0].opcode == "EXIT"


def test_nvdisasm_cannot_be_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: str(tmp_path / "gone"))
    with pytest.raises(MissingComponent, match="cannot be run"):
        disassemble(b"\x7fELF", "sm_90")
