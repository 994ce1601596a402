"""Instructions of sm_90 put together for tests: ptxas's words, with registers, guards and targets of the test's own."""

from __future__ import annotations

from peakgemm.sass.encoding import ALWAYS, Word, decode
from peakgemm.sass.program import Program, with_target

#: Words as ptxas writes them, without control bits; what nvdisasm prints of each is above it.
WORDS = {
    # FFMA R2, R37, R24, R2
    "FFMA": 0x020000001825027223,
    # FFMA R154, R90, 1, R26
    "FFMA immediate": 0x1A3F8000005A9A7823,
    # FFMA R73, R70, UR17, R73
    "FFMA uniform": 0x080000490000001146497C23,
    "FADD": 0x42205C7221,  # FADD R92, R32, R66
    "FMUL": 0x4000000000002A1A257220,  # FMUL R37, R26, R42
    "IADD3": 0x7FFE00F0000000E11197210,  # IADD3 R25, R17, R14, R15
    "IADD3 carries": 0x7A3E05D000000065D0A7210,  # IADD3 R10, P1, P2, R93, R6, R93
    "ISETP": 0xBF4127000000014FF007C0C,  # ISETP.LT.AND P2, PT, RZ, UR20, PT
    "MOV": 0xF000000008D00177802,  # MOV R23, 0x8d
    "MOV register": 0xF00_0000000B00177202,  # MOV R23, R11
    "HFMA2": 0x1FF000048C0FF507435,  # HFMA2.MMA R80, -RZ, RZ, 0, 9.5
    "IMAD": 0x78E022D000000A62C2D7224,  # IMAD R45, R44, R166, R45
    "IMAD.MOV": 0x78E0022000000FFFF2A7224,  # IMAD.MOV.U32 R42, RZ, RZ, R34
    "IMAD.MOV immediate": 0x78E00FF0000C400FF037424,  # IMAD.MOV.U32 R3, RZ, RZ, 0xc400
    "IMAD.MOV uniform": 0xF8E00FF00000008FF027E24,  # IMAD.U32 R2, RZ, RZ, UR8
    "CS2R": 0x1FF000000000000C47805,  # CS2R R196, SRZ
    "LDS": 0x8000311A0002A237984,  # LDS R35, [R42+0x311a0]
    "LDS.64": 0xA000000200099227984,  # LDS.64 R34, [R153+0x20]
    "LDS.128": 0xC00001AD00041047984,  # LDS.128 R4, [R65+0x1ad0]
    "LDG": 0xC1E1900000020381A797981,  # LDG.E R121, desc[UR56][R26.64+0x20]
    "LDG.S8": 0xC1E13000186003802157981,  # LDG.E.S8 R21, desc[UR56][R2.64+0x18600]
    "LDG.128": 0xC1E1D00000000381C1C7981,  # LDG.E.128 R28, desc[UR56][R28.64]
    "STG": 0xC1019380000800F24007986,  # STG.E desc[UR56][R36.64+0x80], R15
    "LDGSTS": 0xB92184807180020A48B7FAE,  # LDGSTS.E [R139+0x7180], desc[UR8][R164.64+0x20]
    "LDGSTS.128": 0xB901C5E0080000020197FAE,  # LDGSTS.E.BYPASS.128 [R25+0x800], desc[UR30][R32.64]
    "BAR": 0x100000000000000007B1D,  # BAR.SYNC.DEFER_BLOCKING 0x0
    "BRA": 0x3800000_0000000000007947,
    "BRA.DIV": 0xB800000_0000000200007947,  # BRA.DIV UR8, `(...)
    "BSSY": 0x3800000_0000000000007945,  # BSSY B0, `(...)
    "BSYNC": 0x3800000_0000000000007941,  # BSYNC B0
    "CALL": 0x3C00000_0000000000007944,  # CALL.REL.NOINC `(...)
    "RET": 0x3C00000_0000000022007950,  # RET.REL.NODEC R34 `(...)
    "EXIT": 0x3800000_000000000000794D,
    "NOP": 0x7918,
}
_CONTROL = 0x3F << 110  # no barrier, no wait
_LOW = {"d": 16, "a": 24, "b": 32, "c": 64}


def word(form: str, guard: int = ALWAYS, negated: bool = False, reuse: str = "", **registers: int) -> Word:
    """The instruction of that name in `WORDS`; ``registers`` by operand: d is written, a, b, c are read."""
    bits = WORDS[form] & ~(0xF << 12) | (guard | negated << 3) << 12 | _CONTROL
    found = decode(bits, "sm_90")
    lows = {_LOW[name]: number for name, number in registers.items()}
    assert lows.keys() <= {field.low for field, _ in found.named if field.kind == "R"}, (form, registers)
    return found.with_numbers([lows.get(field.low, number) if field.kind == "R" else number
                               for field, number in found.named]).with_control(
        stall=1, yield_=1, reuse=sum(1 << "abc".index(slot) for slot in reuse))


def ffma(d: int, a: int, b: int, c: int, reuse: str = "") -> Word:
    """``FFMA Rd, Ra, Rb, Rc``; ``reuse``: the slots that carry it, as ``ab``."""
    return word("FFMA", d=d, a=a, b=b, c=c, reuse=reuse)


def code(*rows: str | Word | tuple[str, int] | tuple[str, int, int]) -> Program:
    """A kernel of these instructions: words, names of `WORDS`, or names of branches with the place that each goes to
    and, where it is conditional, the number of its guard."""
    words = []
    for place, row in enumerate(rows):
        if isinstance(row, Word):
            words.append(row)
        elif isinstance(row, str):
            words.append(word(row))
        else:
            words.append(with_target(word(row[0], row[2] if len(row) > 2 else ALWAYS), place, row[1]))
    return Program("sm_90", "gemm", tuple(words))
