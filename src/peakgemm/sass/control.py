"""The control bits of an instruction: what the compiler tells the hardware's scheduler, sm_70 and later.

An instruction is 128 bits. Bits 105 to 125 do not say what it computes but when it may issue: CuAssembler and Huerta
et al. (2025) describe the fields.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The number of a barrier field that names none of the six.
NO_BARRIER = 7
BARRIERS = 6
#: Bit of the instruction where the field starts; the fields are 21 bits together.
_FIRST, _BITS = 105, 21
_WIDTHS = (("stall", 4), ("yield_", 1), ("write_barrier", 3), ("read_barrier", 3), ("wait_mask", 6), ("reuse", 4))


@dataclass(frozen=True, slots=True)
class Control:
    """When an instruction may issue, and what waits for it.

    ``stall`` is the cycles until the warp's next instruction may issue, 0 to 15. ``yield_`` is the bit as encoded:
    **0** lets the scheduler turn to another warp. ``write_barrier`` and ``read_barrier`` name the scoreboard (0 to 5,
    `NO_BARRIER` for none) that counts until the result is written, and until the operands are read. ``wait_mask`` has
    a bit for each scoreboard that must be empty before it issues. ``reuse`` has a bit for each operand slot, a = 1,
    b = 2, c = 4, whose register stays in the reuse cache; on DEPBAR the same bits number a batch.
    """

    stall: int
    yield_: int
    write_barrier: int
    read_barrier: int
    wait_mask: int
    reuse: int

    @classmethod
    def decode(cls, word: int) -> Control:
        """The control bits of a 128-bit instruction word."""
        bits = word >> _FIRST
        fields = {}
        for name, width in _WIDTHS:
            fields[name] = bits & ((1 << width) - 1)
            bits >>= width
        return cls(**fields)

    def encode(self, word: int) -> int:
        """``word`` with these control bits in the place of its own."""
        bits = shift = 0
        for name, width in _WIDTHS:
            bits |= getattr(self, name) << shift
            shift += width
        return word & ~(((1 << _BITS) - 1) << _FIRST) | bits << _FIRST

    @property
    def sets(self) -> int:
        """The scoreboards, as a mask, that ``write_barrier`` and ``read_barrier`` name."""
        return sum(1 << barrier for barrier in {self.write_barrier, self.read_barrier} if barrier != NO_BARRIER)

    @property
    def waits(self) -> tuple[int, ...]:
        """The scoreboards that ``wait_mask`` names."""
        return tuple(barrier for barrier in range(BARRIERS) if self.wait_mask >> barrier & 1)

    def __str__(self) -> str:
        """As maxas and its successors print it: waits, read barrier, write barrier, yield, stall (``--:-:0:Y:2``)."""
        waits = "".join(map(str, self.waits)) or "--"
        read, write = ("-" if one == NO_BARRIER else str(one) for one in (self.read_barrier, self.write_barrier))
        return f"{waits}:{read}:{write}:{'-' if self.yield_ else 'Y'}:{self.stall}"
