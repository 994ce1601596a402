"""What SASS says of a kernel: control flow, loops, kinds, widths; and that its words are what nvdisasm prints."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from peakgemm.errors import InvalidValue, MissingComponent
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.source import assemble
from peakgemm.sass import listing as sass
from peakgemm.sass.encoding import Word
from peakgemm.sass.facts import FACTS, WIDE, loads_in_a_row, mix, static_facts, width
from peakgemm.sass.listing import Line, nvdisasm, parse
from peakgemm.sass.opcodes import CLASSES, PIPES, opcode
from peakgemm.sass.program import Program, target
from sass_cases import ARCHITECTURES, FIXTURES, of_rung
from tests.support.sass_words import code, ffma, word

ALIGNED = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "ALIGNED": 1}
SUM = ffma(4, 5, 6, 4)


def cubin(name: str, arch: str, macros: dict[str, int] | None = None) -> bytes:
    return compile_source(assemble(FIXTURES / f"{name}.cu"), name, arch, macros).code


# Text, for people to read


def test_parse() -> None:
    lines = list(parse((FIXTURES / "out_of_line.sass").read_text()))
    assert [line.function for line in lines] == ["small"] * 5 + ["gemm"] * 33
    assert [line.address for line in lines[5:]] == list(range(0, 33 * 16, 16))
    by_address = {line.address: line for line in lines[5:]}
    assert by_address[0x40] == Line("gemm", 0x40, "BRA", "@!P0 BRA `(.L_x_5)", "/src/gemm.cu", 22)
    # Scheduling notes and remarks of nvdisasm are dropped.
    assert by_address[0x30].text == "BSSY B0, `(.L_x_2)"
    assert by_address[0x50].text == "LDG.E.128.CONSTANT R4, desc[UR8][R2.64+0x10]"
    # A section starts without a line; of an inlined call the last line printed counts.
    assert (lines[0].file, lines[0].line, by_address[0x10].file) == ("/src/small.cu", 3, None)
    assert by_address[0x30].line == 20


def test_what_nvdisasm_refuses_and_where_it_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="not a cubin"):
        nvdisasm(b"//\n.version 8.8\n", "sm_90")
    with pytest.raises(MissingComponent, match="pip install --upgrade nvidia-cuda-nvdisasm"):
        nvdisasm(b"\x7fELF" + bytes(60), "sm_90")
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)  # None makes the import fail
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingComponent, match="pip install nvidia-cuda-nvdisasm"):
        nvdisasm(b"\x7fELF", "sm_90")
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho '/*0000*/ EXIT ;'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert next(parse(nvdisasm(b"\x7fELF", "sm_90"))).opcode == "EXIT"


# One decoder: what the words say is what nvdisasm prints


def printed(number: int, arch: str) -> list[tuple[Word, Line, int | None]]:
    """Each instruction of a rung with its text, and the address that the text names as its target."""
    file = of_rung(number, arch)
    text, decoded = nvdisasm(file.data, arch, "-c"), Program.of(file)
    lines = list(parse(text))
    labels, waiting = {}, []
    for row in text.splitlines():
        if match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s", row):
            labels.update(dict.fromkeys(waiting, int(match[1], 16)))
            waiting.clear()
        elif match := re.match(r"([.$\w]+):\s*$", row):
            waiting.append(match[1])
    named = [re.search(r"`\(([^)]+)\)", line.text) for line in lines]
    return [(decoded.words[line.address // 16], line, labels.get(match[1]) if match else None)
            for line, match in zip(lines, named, strict=True)]


@pytest.mark.parametrize(("number", "arch"), [*((5, arch) for arch in ARCHITECTURES), (13, "sm_80"), (14, "sm_90"),
                                              (15, "sm_90"), (17, "sm_90")])
def test_words_are_what_nvdisasm_prints(number: int, arch: str) -> None:
    for each, line, labelled in printed(number, arch):
        assert each.name == line.opcode
        assert each.never == line.text.startswith(("@!PT", "@!UPT"))
        if each.name in ("BRA", "BSSY") or (each.name == "CALL" and "REL" in line.text):
            assert target(each, line.address // 16) == (labelled // 16 if labelled is not None else None), line.text
        if each.name in WIDE and not each.never:
            modifiers = line.text[line.text.index(each.name):].split()[0].split(".")
            sizes = [int(modifier.lstrip("US")) for modifier in modifiers
                     if re.fullmatch(r"[US](8|16)|64|128|256", modifier)]
            assert [width(each)] == (sizes or [32]), line.text
        if each.name in ("IMAD", "UIMAD", "HFMA2") and not each.never:
            copies = ".MOV" in line.text or bool(re.search(r" U?R\d+, -?U?RZ, U?RZ,", line.text))
            assert (each.kind == "move") == copies, line.text
        reused = [part.strip() for part in line.text.split(",") if ".reuse" in part]
        assert len(reused) == (each.control.reuse.bit_count() if each.name != "DEPBAR" else 0), line.text


def test_every_opcode_of_the_tables_has_a_kind_and_a_pipe() -> None:
    tables = json.loads(Path(sass.__file__).with_name("opcodes.json").read_text())
    names = {entry["name"] for entry in tables["entries"]}
    assert {opcode(name).kind for name in names} == set(CLASSES)
    assert {opcode(name).pipe for name in names} == set(PIPES)
    assert {name for name in names if opcode(name).kind == "other"} == {
        "B2R", "ENDCOLLECTIVE", "NOP", "UTCATOMSWS", "UTCBAR"}
    # Those of later compilers, by how their names begin.
    assert [(opcode(name).kind, opcode(name).pipe) for name in ("OMMA", "TLD4", "UFOO", "XYZ")] == [
        ("tensor", "tensor"), ("memory", "lsu"), ("integer", "uniform"), ("other", "other")]


# Control flow and loops

#: As ptxas lays out a main loop on sm_80: a cold block out of line that BSYNC joins, a copy loop inside, a call that
#: never returns as the way out; behind it a store that uses the barrier register again, and a routine.
OUT_OF_LINE = code(
    "HFMA2", ("CALL", 24), ("BSSY", 7), ("BRA", 21, 0), "LDG.128", "LDS", ("BRA", 5, 2), "BAR",
    word("LDS", negated=True), "LDGSTS.128", "LDS.128", "LDS.64", SUM, SUM, SUM, ("CALL", 17, 1), ("BRA", 2),
    ("BSSY", 20), "STG", "BSYNC", "EXIT", "LDS.64", "FADD", "BSYNC", "FMUL", SUM, SUM, SUM, SUM, "RET", ("BRA", 30))


def test_main_loop_follows_control_flow() -> None:
    loop = OUT_OF_LINE.loop
    assert loop is not None
    # In: the copy loop inside, and the block out of line that BSYNC joins to place 7. Out: the store, which reuses the
    # barrier register, and the routine, which has more FFMA.
    assert (loop.start, loop.header, loop.places) == (2, 0x20, (*range(2, 17), 21, 22, 23))
    assert loop.own == tuple(place for place in loop.places if place not in (5, 6))
    assert loop.code_bytes == 18 * 16
    assert [each.start for each in OUT_OF_LINE.loops] == [2, 5]
    # The first block that the join leads to, and what follows the call and the routine.
    assert OUT_OF_LINE.successors[21] == (7,)
    assert OUT_OF_LINE.successors[15 - 8] == (17, 16)
    assert set(OUT_OF_LINE.successors[24]) == {2, 16}
    made = mix(OUT_OF_LINE.main)
    assert (made.instructions, made.ffma, made.ffma_fraction) == (18, 3, 3 / 18)
    # The LDS that never runs is padding, not an access.
    assert made.widths == {"LDG": {"128": 1}, "LDS": {"32": 1, "64": 2, "128": 1}, "LDGSTS": {"128": 1}}
    assert {kind: count for kind, count in made.classes.items() if count} == {
        "ffma": 3, "float": 1, "memory": 6, "barrier": 1, "branch": 6, "other": 1}


@pytest.mark.parametrize(("rows", "places"), [
    ((SUM, "FADD", "EXIT"), None),
    # The innermost loop wins, with an FFMA less than the one around it; two branches back are one loop.
    (("MOV", "FMUL", SUM, SUM, ("BRA", 2, 0), SUM, ("BRA", 1, 1), "EXIT"), (2, 3, 4)),
    (("MOV", SUM, ("BRA", 1, 0), "FADD", ("BRA", 1, 1), "EXIT"), (1, 2, 3, 4)),
    # The slow twin of a warp-wide operation, for a warp that has diverged, is no part of the loop.
    (("MOV", SUM, ("BRA.DIV", 5), ("BRA", 1, 0), "EXIT", "FADD", ("BRA", 3)), (1, 2, 3)),
    # No FFMA in the loop.
    (("MOV", "FADD", ("BRA", 1, 0), SUM, "EXIT"), None),
    # A loop that cannot be reached is none.
    (("EXIT", SUM, ("BRA", 1, 0), "EXIT"), None),
])
def test_loops(rows: tuple[str, ...], places: tuple[int, ...] | None) -> None:
    loop = code(*rows).loop
    assert (loop.places if loop else None) == places


@pytest.mark.parametrize(("rows", "most"), [
    ((SUM,), 0), ((word("LDS.128"), SUM, word("LDS")), 1),
    ((word("LDS"), word("LDS.64"), SUM, word("LDS"), word("LDS", guard=0), word("LDS")), 3),
    ((word("LDS", negated=True), word("LDS", negated=True), word("LDGSTS"), word("LDS")), 1),
    ((word("LDS"), word("LDG"), word("LDS")), 1),
])
def test_loads_in_a_row(rows: tuple[Word, ...], most: int) -> None:
    assert loads_in_a_row(rows) == most


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_unrolled_kernel(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: pytest.fail("figures need no nvdisasm"))
    facts = static_facts(cubin("gemm_tile", arch, ALIGNED), arch)
    # 8 k-steps of 8x8, two LDS.128 for each fragment, one float4 of each tile a thread.
    assert (facts["loop_ffma"], facts["loop_bytes"]) == (512, 16 * facts["loop_instructions"])
    assert facts["widths"] == {"LDG": {"128": 2}, "LDS": {"128": 32}, "STS": {"128": 2}}
    assert 0.85 < facts["ffma_fraction"] == 512 / facts["loop_instructions"] < 0.95
    assert sum(facts["classes"].values()) == facts["loop_instructions"]
    assert 0.5 <= facts["bank_ceiling"] <= 1
    # With 16 lanes a sub-partition ptxas all but avoids conflicts; with 32 it cannot.
    least, most = (1.999, 2.1) if arch in ("sm_75", "sm_80") else (1.001, 2)
    assert least < facts["bank_cycles_per_ffma"] < most


def test_no_loop_gives_none() -> None:
    made = compile_source('extern "C" __global__ void k(float* p) { *p += 1; }', "k", "sm_90")
    assert static_facts(made.code, "sm_90") == dict.fromkeys(FACTS) and mix(()).ffma_fraction == 0
