"""What a compiler made of a kernel's main loop: read off each cubin once, when it is compiled.

The choice of a kernel asks this: a release of ptxas may give a loop other registers, move accumulators about or spill,
and such a compilation is not worth running where another configuration is.
"""

from __future__ import annotations

from ..errors import InvalidValue
from ..runtime.main_loop import CompiledLoop
from .banks import reads_of
from .elf import Cubin
from .encoding import architectures
from .program import Program
from .register_reads import follow, rule_of

SAMPLE = 512  # instructions of which a first call waits for the model, of up to 2,200 of a turn
_BEFORE = 64  # instructions that leave the reuse cache as a whole turn does


def read(code: bytes, entry: str, most: int | None = None) -> CompiledLoop | None:
    """The figures of kernel ``entry`` of a cubin; None: no loop around FFMAs, or no table of its architecture.

    No compilation fails for an instruction that the table does not have. ``most``: register reads of so many
    instructions at most are modelled, from the start of a turn. A first call waits for the model, 10 us an instruction,
    and the k-steps of a turn are much alike.
    """
    try:
        cubin = Cubin.read(code)
        if cubin.arch not in architectures():
            return None
        rule = rule_of(cubin.arch)
        turn = Program.of(cubin, entry, unknown="{:#x}".format).main
    except InvalidValue:
        return None
    sampled, reader = turn[:most], rule.reader()
    follow(map(reads_of, turn[-_BEFORE:]), reader)
    steps = zip(sampled, follow(map(reads_of, sampled), reader), strict=True)
    modelled = [step.cycles for word, step in steps if word.name == "FFMA" and step is not None]
    if not modelled:
        return None
    return CompiledLoop(len(turn), sum(word.name == "FFMA" for word in turn),
                        sum(word.name in ("LDL", "STL") for word in turn),
                        round(sum(modelled) / len(modelled), 4), rule.issue)
