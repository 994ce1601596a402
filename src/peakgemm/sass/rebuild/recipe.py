"""What may be chosen when a loop is built anew: a recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ...errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where the instructions of the new loop stand, counted in FFMAs.

    The defaults are what was fastest on an H100 (docs/notebook/21-sass.md); other values of a field cost what is said.

    ``offsets``: where in a step of K each load of the next step's fragments is issued, in the order in which they are
    needed; it must name as many as a step has loads, or is stretched over the step where it does not. One load each 16
    FFMAs is best: one each 10, or pairs, takes 1.5 % longer, three in a row 4 %.
    ``first``: the same for the first step, whose addresses are computed at the turn's start.
    ``barrier``: from the start of the last step to the barrier, below 0: ahead of it, so that the next tile's first
    fragments are read during all of the last step (4 behind it: 0.4 % longer).
    ``gap``: the FFMAs between two instructions of another kind, at least, where dependences leave the room.
    """

    offsets: tuple[int, ...] = (2, 18, 34, 50, 66, 82)
    first: tuple[int, ...] = (40, 54, 68, 82, 96, 110)
    barrier: int = -24
    gap: int = 20

    def __post_init__(self) -> None:
        for name in ("offsets", "first"):
            values = getattr(self, name)
            if not values or min(values) < 0 or list(values) != sorted(values):
                raise InvalidValue(f"{name} = {list(values)}: it takes places in a step, from 0 on, in rising order")
        if self.gap < 1:
            raise InvalidValue(f"gap = {self.gap}: at least one FFMA lies between two other instructions")

    def to_json(self) -> dict[str, Any]:
        """The fields, tuples as lists."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Recipe:
        """A recipe from JSON; fields that are not there keep their defaults.

        Raises:
            InvalidValue: a field that recipes do not have, or a value of another kind.
        """
        known = {one.name: getattr(cls(), one.name) for one in fields(cls)}
        if not isinstance(data, dict) or (strange := [name for name in data if name not in known]):
            said = f"no recipe has {', '.join(strange)}" if isinstance(data, dict) else "a recipe is a JSON object"
            raise InvalidValue(f"{said}; its fields are {', '.join(known)}")
        made: dict[str, Any] = {}
        for name, value in data.items():
            if isinstance(known[name], tuple):
                fits = isinstance(value, list) and all(type(one) is int for one in value)
            else:
                fits = type(value) is type(known[name])
            if not fits:
                raise InvalidValue(f"{name} = {value!r}: a recipe's {name} looks like {known[name]!r}")
            made[name] = tuple(value) if isinstance(value, list) else value
        return cls(**made)

    def places(self, count: int, step: int, first: bool = False) -> tuple[int, ...]:
        """Where ``count`` loads stand in a step of ``step`` FFMAs: as listed, or as evenly where the count differs."""
        listed = self.first if first else self.offsets
        if len(listed) == count and listed[-1] < step:
            return listed
        even = step * 3 // 4 // count // 2 * 2
        return tuple(min(listed[0] % step, step // 8) // 2 * 2 + even * one for one in range(count))
