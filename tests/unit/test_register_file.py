"""The model of Hopper's register reads, against what was measured on an H100 and against its published record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.registers.kinds import FFMA_KINDS
from lab.registers.shared_loads import predicted_shared
from lab.registers.streams import RZ, WORDS, Op, Stream, parse, predicted, text
from lab.registers.summary import summaries
from lab.registers.write_backs import AHEAD, ARRIVES, PATIENCE, WriteBacks
from peakgemm.errors import InvalidValue
from peakgemm.sass.register_file import RegisterFile, Step
from seldom import exhaustive

RECORD = Path(__file__).parents[2] / "results" / "h100" / "registers.json"

# Cycles of a turn on an H100, one warp a scheduler. Each stream errs by a cycle under some rule that looks alike.
MEASURED = [
    # A window of three cycles without operand registers of their own says 4.
    ("1 - 49 51 | 2 - 53 55 | 3 44 46 48 | 4 - - -", 5),
    ("1 - - - | 2 45 - 47 | 3 49 - 51 | 4 - 44 46", 5),
    ("1 - 44 46 | 2 - - - | 3 - 45 47 | 4 48 49 51", 5),
    # An operand register for each slot alone, not for each slot and bank, says 5 and 7.
    ("1 44 - 46 | 2 48 - - | 3 50 45 47 | 4 49 51 -", 4),
    ("1 44 46 - | 2 - 48 50 | 3 - 45 - | 4 47 49 51", 4),
    # A window of three that hands out cycles ahead says 8.
    ("1 44 45 - | 2 46 47 - | 3 48 - - | 4 50 - - | 5 52 54 56 | 6 - 49 - | 7 51 53 - | 8 55 - 57", 10),
    # One register by two slots: read once (6 otherwise), but not before both operand registers are free (4 otherwise).
    ("4 46 54 46 | 5 117. 49. 67 | 8 117. 54 67 | 9 46 46 67.", 5),
    # A sum under way is read late: 28 without that.
    ("5 54 75 5 | 31 82 85 31 | 12 45 70 12 | 33 68 48 33 | 22 117 68 22 | 25 54 125 25 | 18 64 76 18 | 16 76 75 16 | "
     "13 85 49 13 | 36 58 70 36 | 3 48 58 3 | 19 113 52 19 | 9 95 78 9 | 5 53 93 5 | 20 46 79 20 | 12 121 59 12", 29),
]


@pytest.mark.parametrize(("line", "cycles"), MEASURED)
def test_measured_streams(line: str, cycles: int) -> None:
    stream = parse(line)
    assert predicted(stream) * len(stream) == cycles
    assert text(stream) == line


EVEN, ODD, BOTH, NONE = (8,), (9,), (8, 9), (RZ,)
HOLE, TO_ODD = Op(RZ, name="NOP"), Op(9)
WIDE, PAIR, ONE = Op(84, name="LDS.128"), Op(84, name="LDS.64"), Op(84, name="LDS")


def among(length: int, writes: tuple[int, ...], **places: Op) -> Stream:
    """FFMAs that read nothing and write ``writes`` in turn, with others in ``places`` (p14: the fifteenth)."""
    return tuple(places.get(f"p{number}", Op(writes[number % len(writes)])) for number in range(length))


# Cycles of a turn of 512 instructions beyond 512 on an H100, one warp alone on its SM.
LOADS = [
    # A load of one register waits for its bank alone, of more for both banks in one cycle.
    (among(128, EVEN, p64=ONE), 12.3), (among(128, ODD, p64=ONE), 0.8), (among(128, NONE, p64=ONE), 0.0),
    # Two pairs of an LDS.128 are written in one stall of three cycles.
    (among(128, BOTH, p64=WIDE), 12.0),
    # A free cycle serves from the 14th behind a load on, for 16 cycles; in the next three it shortens the stall.
    (among(64, BOTH, p0=PAIR, p11=HOLE), 24.0), (among(64, BOTH, p0=PAIR, p15=HOLE), 0.0),
    (among(64, EVEN, p0=PAIR, p31=HOLE), 18.2), (among(64, EVEN, p0=PAIR, p33=HOLE), 24.1),
    (among(64, EVEN, p0=PAIR, p21=TO_ODD), 24.2), (among(64, EVEN, p0=ONE, p21=TO_ODD), 0.4),
    # One free cycle does not serve an LDS.128, and puts its deadline off.
    (among(64, BOTH, p0=WIDE, p20=HOLE), 24.0), (among(64, BOTH, p0=WIDE, p32=HOLE), 10.0),
    # The next load's own cycle is free: not at 14, for an LDS.128, but at 16.
    (among(128, BOTH, p0=WIDE, p14=WIDE), 24.0), (among(128, BOTH, p0=WIDE, p16=WIDE), 12.1),
    # Written one by one from a long queue, each with a deadline of its own.
    (among(128, BOTH, **{f"p{number}": WIDE for number in range(8)}), 70.8),
    # Taken each two cycles, an LDS.128 each four.
    ((ONE,), 490.5), ((WIDE,), 1513.0),
    # A cycle later with an address register.
    (among(32, BOTH, p16=PAIR), 38.9), (among(32, BOTH, p16=Op(84, (66, RZ, RZ), name="LDS.64")), 33.9),
]


@pytest.mark.parametrize(("stream", "cycles"), LOADS)
def test_measured_loads(stream: Stream, cycles: float) -> None:
    assert predicted(stream) * WORDS - WORDS == pytest.approx(cycles, abs=7)
    assert parse(text(stream)) == stream


# The same with one warp a scheduler.
SHARED = [
    # A register pair a cycle, to all four.
    ((ONE,), 1513.4), ((PAIR,), 1513.4), ((WIDE,), 3560.0), (among(4, NONE, p2=WIDE), 487.9),
    (among(4, NONE, p2=PAIR), 1.3), (among(8, NONE, p4=WIDE), 0.3), (among(16, BOTH, p8=PAIR), -1.6),
    # What waits for ports takes places from the others: alone 41.7, 9.8, 12.1.
    (among(8, BOTH, p4=WIDE), 123.0), (among(16, BOTH, p8=WIDE), 34.5), (among(128, BOTH, p0=WIDE, p16=WIDE), 21.1),
]


@pytest.mark.parametrize(("stream", "cycles"), SHARED)
def test_measured_with_four_schedulers(stream: Stream, cycles: float) -> None:
    assert predicted_shared(stream) * WORDS - WORDS == pytest.approx(cycles, abs=7)


def test_a_load_that_nothing_lets_in_stops_the_issue() -> None:
    ports = WriteBacks()
    assert ports.load(0, "LDS.64", 84, addressed=False) == 0
    issued = [0]
    for _ in range(60):
        issued.append(ports.arithmetic(issued[-1] + 1, 8))
    first = ARRIVES["LDS.64"] + PATIENCE - 1 + AHEAD
    assert [cycle for cycle in range(issued[-1]) if cycle not in issued] == [first, first + 1, first + 2]


def steps(*instructions: tuple[tuple[int | None, ...], int]) -> list[Step]:
    file = RegisterFile()
    return [file.read(*one) for one in instructions]


@pytest.mark.parametrize(("instructions", "cached"), [
    # Kept by slot and bank: another bank, or no read of the slot, leaves the entry.
    ([((2, None, None), 1), ((3, None, None), 0), ((None, 4, None), 0), ((2, None, None), 0)], [0, 0, 0, 1]),
    ([((2, 7, None), 3), ((2, 7, None), 2), ((2, 7, None), 0)], [0, 3, 2]),  # a hit without reuse ends it
    ([((2, None, None), 1), ((4, None, None), 0), ((2, None, None), 0)], [0, 0, 0]),  # another register of the bank
])
def test_what_is_held_for_reuse(instructions: list[tuple[tuple[int | None, ...], int]], cached: list[int]) -> None:
    assert [step.cached for step in steps(*instructions)] == cached


def test_the_slots_that_made_it_wait() -> None:
    step, = steps(((2, 4, 5), 0),)
    assert step == Step(1)  # empty stages: two cycles to gather two of a bank hold up nothing
    full = steps(*[((2, 4, 6), 0)] * 4)
    assert [one.cycles for one in full[1:]] == [3, 3, 3]
    assert full[-1].waited == 6  # a comes in time, b and c each a cycle later


@pytest.mark.parametrize("line", ["", "12 66", "FROB 1 2 3 4", "LDS.64 84 3 5", "x 1 2 3", "NOP 3"])
def test_no_stream(line: str) -> None:
    with pytest.raises(InvalidValue, match="no instruction of a stream"):
        parse(line)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    return json.loads(RECORD.read_text())["streams"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("step", [16, exhaustive(1)])
def test_the_record_holds_what_the_model_says(rows: list[dict[str, object]], step: int) -> None:
    for row in rows[::step]:
        stream = parse(str(row["stream"]))
        assert predicted(stream) == pytest.approx(row["model"], rel=1e-5), row
        assert predicted_shared(stream) == pytest.approx(row["model_shared"], rel=1e-5), row


def test_the_model_against_the_record(rows: list[dict[str, object]]) -> None:
    """What the page promises: 0.02 cycles an instruction on average and 0.08 at most, of each kind of stream."""
    kinds = summaries(rows)
    assert sum(kind["streams"] for kind in kinds if kind["kind"] in FFMA_KINDS) >= 200
    assert sum("LDS" in str(row["stream"]) for row in rows) >= 100
    for kind in kinds:
        assert kind["mean_error"] <= 0.02
        assert kind["largest_error"] <= 0.08
        assert kind["mean_error_shared"] <= 0.02
        assert kind["largest_error_shared"] <= (0.101 if kind["kind"] == "mixed" else 0.08)  # one stream of 515
