"""Copies that a loop built anew does without: of a uniform register one for several, and those that no turn changes."""

from __future__ import annotations

from collections import defaultdict

from ..encoding import Register, Word
from .block import plain_move, source_of
from .place import has_cycle
from .values import TURN, Value, Values


def merge(values: Values) -> None:
    """Let one copy of a uniform register serve where several copy the same value: the one whose register no other
    instruction writes."""
    count = {register: len(places) for register, places in values.definitions().items()}
    alike: dict[Value, list[int]] = defaultdict(list)
    for place in values.places:
        word = values.block.words[place]
        if plain_move(word) and (source := source_of(word)) is not None and source.kind == "UR":
            alike[values.sources[place][source], source].append(place)
    for places in alike.values():
        single = [place for place in places if count[_destination(values, place)] == 1]
        if len(places) < 2 or not single:
            continue
        kept = _destination(values, single[0])
        for place in places:
            if place == single[0]:
                continue
            dropped = _destination(values, place)
            for reader in values.readers((place, dropped)):
                values.sources[reader][dropped] = single[0]
                # The reader names the register by its old name, and finds the value in the copy's.
                values.register[single[0], dropped] = kept
            values.places.remove(place)


def hoist(values: Values, wanted_behind: frozenset[Register]) -> None:
    """Take copies of what the turns leave alone, or hand on, out of the loop.

    ``MOV R5, R7`` at the head of a turn, ``R7 = R5 + x`` in it: the new loop keeps the value in R5 throughout, and the
    copy runs once, before it. ``wanted_behind`` are the registers that are live behind the loop: one of these that
    changes keeps its copy.
    """
    for place in list(values.places):
        word = values.block.words[place]
        if not plain_move(word) or (source := source_of(word)) is None:
            continue
        target, definitions = _destination(values, place), values.definitions()
        home, changes = values.home((place, target)), definitions.get(source, [])
        again = definitions[target] != [place] or values.readers((TURN, target))
        if again or values.sources[place][source] != TURN or home in wanted_behind or (
                changes and (source.kind == "UR" or source in wanted_behind)):
            continue
        trial = values.copy()
        trial.places.remove(place)
        for reader in trial.readers((place, target)):
            trial.sources[reader][target] = TURN
        trial.register[TURN, target] = home
        if source.kind == "R":
            trial.register[TURN, source] = home
            trial.register.update({(definition, source): home for definition in changes})
        trial.carried[home] = source
        trial.preheader.append(_moved(word, home))
        if not has_cycle(trial):
            vars(values).update(vars(trial))


def _moved(move: Word, target: Register) -> Word:
    return move.with_numbers([target.number if field.role == "w" else number for field, number in move.named])


def _destination(values: Values, place: int) -> Register:
    return next(iter(values.block.words[place].writes))
