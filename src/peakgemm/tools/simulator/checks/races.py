"""Shared-memory races: two accesses to one place by different threads, one a write, unordered.

What orders accesses is a barrier that both threads take part in, a synchronisation of their
warp, or a flag: a strong store behind a fence, seen by a strong load before one. A ``cp.async`` write lasts from its
issue until its thread waits for it, a bulk copy or ``st.async`` until its mbarrier's phase has been waited for.
Accesses are logged, not examined: between two barriers of all threads a kernel in a loop leaves the same log
again, and a log seen before is known to be clean. A new one is replayed on vector clocks (`clocks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.lanes import LaneSet
from .clocks import Clocks, Token

if TYPE_CHECKING:
    from ..machine import Batch, Machine
    from .access import Pattern
    from .async_reads import Footprint

LONG = 4096  # tokens after which a log is examined even without a barrier
HEAVY = 32 << 20  # bytes of new addresses, likewise


class RaceLog:
    """The log of one batch. Memo of clean logs: ``machine.clean_logs``, shared by all batches."""

    def __init__(self, machine: Machine, batch: Batch) -> None:
        self.machine, self.batch = machine, batch
        self.log: list[Token] = []
        self.fresh = 0
        self.prefix: tuple[Token, ...] = ()  # cp.async writes in flight when the log began
        self.clocks: Clocks | None = None  # set while a log is carried over without a full barrier

    def access(self, event: str, site: Any, pattern: Pattern | Footprint, shift: int = 0, *mbarrier: int) -> None:
        """An access: ``r``, ``w``, ``a`` (atomic), ``u`` (a volatile write of what is there), ``c`` (cp.async write),
        ``t`` (bulk copy to shared memory, or ``st.async``), or of a `Footprint` ``g`` (read by wgmma) or ``s`` (read by
        a bulk store).

        ``mbarrier``, of ``t``: the mbarrier's address and phase.
        """
        self.log.append((event, site, pattern, shift, *mbarrier))
        if not pattern.logged:  # addresses that depend on data never repeat, and would fill the memory
            pattern.logged = True
            self.fresh += len(pattern.raw)
        if len(self.log) > LONG or self.fresh > HEAVY:
            self._carry()

    def event(self, *token: Any) -> None:
        """``bar`` lanes (whether others have arrived), ``arrive``/``join`` key lanes, ``warp`` lanes masks, ``commit``
        lanes, ``wait`` lanes n, ``cluster`` lanes (a barrier of it), ``exit`` lanes (one of each block that ends),
        ``landed`` mbarrier lanes phase, ``proxy`` lanes, ``fence`` lanes scope, ``flag`` strength lanes
        words (in global memory),
        ``commit_reads``/``wait_reads`` kind lanes (n)."""
        self.log.append(token[:2] if token[0] == "warp" else token)
        self.batch.order.note(self.batch, *token)

    def full_barrier(self) -> None:
        """All live threads of the batch have passed a barrier: what came before is ordered."""
        self.batch.order.all_met(self.batch)
        log, self.log = self.log, []
        if not log and not self.prefix and self.clocks is None:
            return
        if self.clocks is None:
            key = (self.prefix, tuple(log))
            known = self.machine.clean_logs.get(key)
            if known is None:
                # What the async proxy reads must be known to have been fenced since it was written.
                following = None if self.machine.async_reads else _in_flight((*self.prefix, *log))
                clocks = Clocks(self.machine, self.batch)
                clocks.start(self.prefix)
                clocks.replay(log)
                if following is None:
                    self.clocks = clocks
                    clocks.full_barrier()
                    return
                self.machine.logged_bytes += self.fresh
                self.fresh = 0
                if len(self.machine.clean_logs) > 4096 or self.machine.logged_bytes > 4 * HEAVY:
                    self.machine.clean_logs.clear()
                    self.machine.logged_bytes = 0
                known = self.machine.clean_logs[key] = following
            self.prefix = known
            return
        self.clocks.replay(log)
        self.clocks.full_barrier()
        if not (self.machine.async_reads or self.clocks.in_flight()):
            self.clocks, self.prefix = None, ()

    def finish(self) -> None:
        """The batch has ended."""
        if self.log:
            key = ("end", self.prefix, tuple(self.log))
            if self.clocks is None and key in self.machine.clean_logs:
                return
            self._carry()
            self.machine.clean_logs[key] = ()

    def _carry(self) -> None:
        log, self.log, self.fresh = self.log, [], 0
        if self.clocks is None:
            self.clocks = Clocks(self.machine, self.batch)
            self.clocks.start(self.prefix)
        self.clocks.replay(log)


def _in_flight(tokens: tuple[Token, ...]) -> tuple[Token, ...] | None:
    """The cp.async tokens that are still in flight after ``tokens``; None where threads disagree about groups, or
    there are bulk copies."""
    groups: list[list[Token]] = [[]]
    who: LaneSet | None = None
    for token in tokens:
        if token[0] == "t":
            return None
        if token[0] == "c":
            groups[-1].append(token)
        elif token[0] in ("commit", "wait"):
            if who is not None and token[1] is not who:
                return None
            who = token[1]
            if token[0] == "commit":
                groups.append([])
            else:
                keep = token[2]
                if keep < 0:  # wait_all: also what was not committed
                    groups = [[]]
                elif len(groups) - 1 > keep:
                    groups = groups[len(groups) - 1 - keep:]
    out: list[Token] = []
    for group in groups[:-1]:
        out += [*group, ("commit", who)]
    out += groups[-1]
    while out and out[0][0] == "commit":
        out.pop(0)
    return tuple(out)
