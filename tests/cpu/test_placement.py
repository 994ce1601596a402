"""Where loops lie in the instruction cache, and what the shipped cubins make of it."""

from __future__ import annotations

import importlib
import lzma
from pathlib import Path

import pytest

from peakgemm.inspect.loops import main_loop
from peakgemm.inspect.sass import Instruction, disassemble, parse
from peakgemm.kernels import shipped
from peakgemm.sass import placement
from peakgemm.sass.placement import LINE, MARGIN, SETS, copy_loop, crowded_sets, lines, pad_of

TOOLS = Path(__file__).parents[2] / "tools"


def loop(label: str, body: list[str]) -> list[str]:
    return [f".{label}:", *body, f"@P0 BRA `(.{label})"]


def listing(parts: list[str]) -> str:
    """As nvdisasm prints it, one instruction every 16 bytes."""
    text, address = [], 0
    for part in parts:
        if part.startswith("."):
            text.append(part)
        else:
            text.append(f"        /*{address:04x}*/                   {part} ;")
            address += 16
    return "\n".join(text)


def kernel(main: int, between: int, copies: int = 90) -> str:
    """A loop of ``main`` FFMAs, one that copies, ``between`` instructions, and one of ``copies``."""
    copying = ["LDGSTS.E [R1], [R2.64]", "ARRIVES.LDGSTSBAR.64 [UR5]"]
    return listing([*loop("main", ["FFMA R0, R1, R2, R0"] * main), *loop("first", copying * 3),
                    *["NANOSLEEP 0x1"] * between, *loop("copy", copying + ["IADD3 R1, R1, R2, RZ"] * copies), "EXIT"])


def pad(monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    monkeypatch.setattr(placement, "disassemble", lambda cubin, arch: text)
    return pad_of(b"", "sm_90")


def test_loops_are_found() -> None:
    code = parse(kernel(500, 7))
    copying, main = copy_loop(code), main_loop(code)
    assert main is not None and len(main.instructions) == 501 and len(copying) == 93
    assert copying[0].address == 16 * (501 + 7 + 7)
    assert copy_loop(parse(listing([*loop("main", ["FFMA R0, R1, R2, R0"] * 9), "EXIT"]))) == ()


def test_crowded_sets() -> None:
    assert crowded_sets(set(range(3 * SETS))) == crowded_sets(set(range(4 * SETS))) == set()
    assert crowded_sets(set(range(10, 10 + 3 * SETS + 5))) == {10, 11, 12, 13, 14}
    assert crowded_sets(set(range(60, 60 + 4 * SETS + 6))) == {60, 61, 62, 63, 0, 1}
    assert crowded_sets(set(range(2 * SETS + 5))) == set()  # there is room for one more


@pytest.mark.parametrize("between", [0, 100, 200, 300, 400])
def test_a_loop_is_moved_out_of_crowded_sets_and_stays_there(monkeypatch: pytest.MonkeyPatch, between: int) -> None:
    """A main loop of 35 KB, whose first 20 lines or so share their sets with its last: bytes 32768 to 35344."""
    more = pad(monkeypatch, kernel(2208, between))
    rows = lines(copy_loop(parse(kernel(2208, between + more))))
    crowded = crowded_sets(lines([one for one in parse(kernel(2208, 0)) if one.address < 16 * 2209]))
    assert {20, 21} & crowded == {20} and more % (LINE // 16) == 0
    assert not {line % SETS for line in rows} & crowded and pad(monkeypatch, kernel(2208, between + more)) == 0
    assert bool(more) == bool({line % SETS for line in lines(copy_loop(parse(kernel(2208, between))))} & crowded)
    if more:  # no further than it must be
        nearer = lines(copy_loop(parse(kernel(2208, between + more - LINE // 16))))
        assert {(line + by) % SETS for line in nearer for by in range(-MARGIN, MARGIN + 1)} & crowded


def test_what_fits_or_has_no_such_loop_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pad(monkeypatch, kernel(1900, 0)) == 0  # all of it has room
    assert pad(monkeypatch, listing([*loop("main", ["FFMA R0, R1, R2, R0"] * 2208), "EXIT"])) == 0


def test_shipped_kernels_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    cubins = importlib.import_module("cubins")
    names = [name for name, job in cubins.wanted().items()
             if tuple(job.macros.get(key, 0) for key in ("BM", "BN", "BK", "CLUSTER")) in cubins.PLACED
             and job.entry == "ffma_specialised"]
    assert len(names) > 10
    for name in names[::5]:
        code = lzma.decompress((shipped.FOLDER / f"{name}.xz").read_bytes())
        found: tuple[Instruction, ...] = parse(disassemble(code, "sm_90"))
        main, rows = main_loop(found), lines(copy_loop(found))
        assert main is not None and not {line % SETS for line in rows} & crowded_sets(lines(main.instructions))
