"""One row for each opcode: what it is, which pipe runs it, what it accesses, and when its result comes.

`encoding` gives every decoded instruction the row of its opcode. Rows are by the name without modifiers, as nvdisasm
prints it. Source of the pipes: Nsight Compute's documentation, "Pipelines": ``sm__inst_executed_pipe_*``. Queues and
cycles are what compiled code of sm_90 relies on (docs/sass.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

#: The kinds of instructions, in the order in which tables show them.
CLASSES = ("ffma", "float", "tensor", "integer", "memory", "barrier", "branch", "move", "other")
#: The pipes of a sub-partition, in the order in which tables show them.
PIPES = ("fma", "alu", "lsu", "tensor", "uniform", "xu", "fp64", "cbu", "adu", "other")
#: Spaces whose order of accesses a transformation keeps. "sync" is an access to all of them.
#: "padding" is that of what never runs: ptxas puts three such loads before LDGSTS, where they stay.
SPACES = ("shared", "global", "local", "padding", "sync")


@dataclass(frozen=True, slots=True)
class Opcode:
    """A row of the table.

    Attributes:
        kind: one of `CLASSES`. Instructions of the uniform datapath count with their per-thread twins, loads of
            constants and shuffles with memory, the bookkeeping of divergence with branches.
        pipe: one of `PIPES`.
        access: one of `SPACES`; ``flow``: control may go elsewhere, or it names where, so that it ends a block for a
            transformation; empty: it only computes.
        queue: where its latency is variable, the queue in which results come in the order of issue: an instruction that
            sets a scoreboard vouches for those before it in its queue. A queue of the opcode's own name keeps no order.
            Empty: its latency is fixed.
        reader: the queue in which a variable-latency instruction reads its operands. Memory instructions read in the
            order of their issue, whatever space they access.
        cycles: the longest that ptxas keeps a consumer waiting for a fixed-latency result where nothing else stands
            between.
    """

    kind: str
    pipe: str
    access: str = ""
    queue: str = ""
    reader: str = ""
    cycles: int = 6


_OWN = "own"  # a queue of the opcode's own name
_MEMORY = "memory"
_ROWS: tuple[tuple[str, Opcode], ...] = (
    ("FFMA FFMA2", Opcode("ffma", "fma")),
    ("FADD FADD2 FMUL FMUL2", Opcode("float", "fma")),
    ("HADD2 HFMA2 HMUL2", Opcode("float", "fma", cycles=8)),
    ("F2FP FMNMX FMNMX3 FSEL FSETP I2FP", Opcode("float", "alu")),
    ("HMNMX2 HSET2 HSETP2 VHMNMX", Opcode("float", "alu", cycles=8)),
    ("FCHK", Opcode("float", "alu", queue="xu")),
    ("F2F F2I FRND I2F MUFU", Opcode("float", "xu", queue="xu")),
    ("DADD DFMA DMUL DSETP", Opcode("float", "fp64", cycles=10)),
    ("UF2I UFMUL UFSETP UI2F", Opcode("float", "uniform")),
    ("HMMA IMMA DMMA QMMA", Opcode("tensor", "tensor", cycles=26)),
    ("HGMMA QGMMA IGMMA BGMMA", Opcode("tensor", "tensor", "sync", "tensor")),
    ("UTCHMMA", Opcode("tensor", "tensor", "sync")),
    ("IADD IADD3 IABS IMNMX ISETP LEA LOP3 PLOP3 PRMT SEL SGXT SHF VIADD VIADDMNMX VIMNMX VIMNMX3",
     Opcode("integer", "alu")),
    ("IMAD IDP", Opcode("integer", "fma")),
    ("BREV FLO I2I POPC", Opcode("integer", "xu", queue="xu")),
    ("ELECT VOTE VOTEU", Opcode("integer", "alu", "sync", cycles=13)),
    ("MATCH", Opcode("integer", "alu", "sync", _OWN)),
    ("REDUX CREDUX", Opcode("integer", "alu", "sync", "redux")),
    ("UBREV UIADD3 UIMAD UISETP ULEA ULOP3 UPLOP3 UPOPC UPRMT USEL USGXT USHF UVIRTCOUNT",
     Opcode("integer", "uniform")),
    ("UFLO", Opcode("integer", "uniform", cycles=13)),
    ("LDS LDSM STS STSM", Opcode("memory", "lsu", "shared", "shared", _MEMORY)),
    ("ATOMS", Opcode("memory", "lsu", "shared", "atoms", _MEMORY)),
    ("STAS", Opcode("memory", "lsu", "shared", "stas", _MEMORY)),
    ("LDG LD ATOMG ATOM CCTL REDAS", Opcode("memory", "lsu", "global", _OWN, _MEMORY)),
    ("STG ST REDG RED", Opcode("memory", "lsu", "global", "store", _MEMORY)),
    ("LDL", Opcode("memory", "lsu", "local", _OWN, _MEMORY)),
    ("STL", Opcode("memory", "lsu", "local", "store", _MEMORY)),
    ("SHFL", Opcode("memory", "lsu", "sync", "shared", _MEMORY)),
    ("LDGSTS", Opcode("memory", "lsu", "sync", "store", _MEMORY)),
    ("LDTM STTM", Opcode("memory", "lsu", "sync")),
    ("UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKPF UBLKRED",
     Opcode("memory", "lsu", "sync", _OWN)),
    ("LDC", Opcode("memory", "adu", queue="constant")),
    ("LDCU", Opcode("memory", "lsu")),
    ("ULDC", Opcode("memory", "uniform")),
    ("BAR", Opcode("barrier", "adu", "sync", "bar")),
    ("ACQBULK ARRIVES DEPBAR PREEXIT WARPGROUP", Opcode("barrier", "adu", "sync")),
    ("CGAERRBAR ERRBAR FENCE LDGDEPBAR MEMBAR SYNCS", Opcode("barrier", "adu", "sync", _OWN)),
    ("UCGABAR_ARV UCGABAR_WAIT", Opcode("barrier", "uniform", "sync")),
    ("USETMAXREG", Opcode("barrier", "uniform", "sync", _OWN)),
    ("NANOSLEEP", Opcode("barrier", "cbu", "sync")),
    ("WARPSYNC YIELD", Opcode("barrier", "cbu", "flow")),
    ("BRA BRX BRXU JMP JMX JMXU CALL RET EXIT KILL BPT BREAK BSSY BSYNC LEPC RPCMOV", Opcode("branch", "cbu", "flow")),
    ("BMOV", Opcode("branch", "cbu", "flow", _OWN)),
    ("MOV", Opcode("move", "alu")),
    ("CS2R P2R R2P R2UR", Opcode("move", "alu", cycles=13)),
    ("MOVM", Opcode("move", "alu", queue="movm")),
    ("S2R", Opcode("move", "adu", queue="special")),
    ("S2UR", Opcode("move", "alu", queue="uspecial")),
    ("UMOV UP2UR UR2UP", Opcode("move", "uniform")),
    ("B2R", Opcode("other", "other", "sync", "b2r")),
    ("R2B", Opcode("other", "other", "sync", _OWN)),
    ("ENDCOLLECTIVE", Opcode("other", "other", "sync")),
    ("UTCATOMSWS UTCBAR", Opcode("other", "uniform", "sync")),
    ("NOP", Opcode("other", "other")),
)
#: What opcodes without a row are taken for, by how their names begin: they keep their place among all accesses.
_LIKE = ((re.compile(r"\w*MMA"), Opcode("tensor", "tensor", "sync")),
         (re.compile(r"LD|ST|ATOM|RED|CCTL|TEX|TLD|TXD|SU(ATOM|LD|RED|ST)|UBLK|UTMA|QSPC"),
          Opcode("memory", "lsu", "sync")),
         (re.compile("U"), Opcode("integer", "uniform")))
_TABLE = {name: row for names, row in _ROWS for name in names.split()}


@cache
def opcode(name: str) -> Opcode:
    """The row of an opcode, its queues by name."""
    row = _TABLE.get(name) or next((row for pattern, row in _LIKE if pattern.match(name)), Opcode("other", "other"))
    queue = name if row.queue == _OWN else row.queue
    return Opcode(row.kind, row.pipe, row.access, queue, row.reader or queue, row.cycles)
