"""What an instruction does beside its registers: memory, barriers, control flow, and whether its latency is fixed."""

from __future__ import annotations

from .encoding import Word

#: Spaces whose order of accesses a transformation keeps. "sync" is an access to all of them.
#: "padding" is that of what never runs: ptxas puts three such loads before LDGSTS, where they stay.
SPACES = ("shared", "global", "local", "padding", "sync")

_SHARED = ("LDS", "STS", "LDSM", "STSM", "ATOMS", "REDS", "STAS")
_GLOBAL = ("LDG", "STG", "ATOMG", "ATOM", "REDG", "RED", "LD", "ST", "CCTL", "CCTLL", "CCTLT", "REDAS", "SULD", "SUST",
           "TEX", "TLD", "TLD4", "TXQ", "SUATOM", "SURED", "QSPC")
_LOCAL = ("LDL", "STL")
_LOADS = frozenset(("LDS", "LDSM", "LDL"))
_PURE_LOADS = frozenset(("LDC", "LDCU", "ULDC", "S2R", "S2UR", "CS2R", "CS2UR"))
_FLOW = frozenset(("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "KILL",
                   "BMOV", "RPCMOV", "LEPC", "BPT", "YIELD", "WARPSYNC", "NOP", "RTT"))
_SYNC = frozenset(("BAR", "DEPBAR", "LDGDEPBAR", "MEMBAR", "SYNCS", "ERRBAR", "CGAERRBAR", "NANOSLEEP", "FENCE",
                   "ARRIVES", "ACQBULK", "WARPGROUP", "PREEXIT", "SETMAXREG", "USETMAXREG", "CGABAR_ARV", "CGABAR_WAIT",
                   "ELECT",
                   "VOTE", "VOTEU", "MATCH", "SHFL", "B2R", "R2B", "UCGABAR_ARV", "UCGABAR_WAIT", "WARPGROUPSET",
                   "LDGSTS", "UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UTMACCTL", "UTMACMDFLUSH", "UBLKCP",
                   "UBLKPF", "UBLKRED", "HGMMA", "IGMMA", "QGMMA", "BGMMA", "REDUX", "CREDUX", "GETLMEMBASE",
                   "SETLMEMBASE", "ENDCOLLECTIVE", "UTCBAR", "UTCHMMA"))


def space(word: Word) -> str | None:
    """Which of `SPACES` an instruction accesses, or None: it only computes.

    An instruction that is not known here counts as "sync": it keeps its place.
    """
    name = word.name
    if word.never:
        return "padding" if name.startswith(("LD", "ST")) else None
    if name in _SYNC:
        return "sync"
    if name in _SHARED:
        return "shared"
    if name in _LOCAL:
        return "local"
    if name in _GLOBAL:
        return "global"
    if name.startswith(("LD", "ST", "ATOM", "RED", "SU", "UT", "UBLK", "CCTL")) and name not in _PURE_LOADS:
        return "sync"
    return None


def only_loads(word: Word) -> bool:
    """Whether an access leaves memory as it is, so that two of them may change places."""
    return word.name in _LOADS and not word.never


def ends_block(word: Word) -> bool:
    """Whether control may go elsewhere after it, or it names where: it keeps its place at the end of a block."""
    return word.name in _FLOW and word.name != "NOP"


def reads_clock(word: Word) -> bool:
    """Whether what it returns depends on when it runs: a special register read that cannot be moved freely."""
    return word.name in ("S2R", "S2UR", "CS2R", "CS2UR") and word.rest >> 72 & 0xFF in _CLOCKS


#: Special registers that change while a warp runs: clocks, timers, counters (SR_CLOCKLO and its like).
_CLOCKS = frozenset(range(0x50, 0x60)) | frozenset((0x0C, 0x0E))
