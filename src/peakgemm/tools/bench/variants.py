"""In which precision, and with what done beforehand, ours is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...calls.request import PRECISIONS, check_precision
from ...errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Variant:
    """How ours runs: in which ``precision`` of `peakgemm.matmul`; ``prepared``: with B from `peakgemm.prepare`."""

    precision: str = "ieee"
    prepared: bool = False

    @property
    def label(self) -> str:
        """``emulated``, or ``emulated, B prepared``."""
        return self.precision + ", B prepared" * self.prepared

    def fields(self) -> dict[str, Any]:
        """Of a record."""
        return {"precision": self.precision, "prepared": self.prepared}

    def name(self, what: str) -> str:
        """``what`` in a table: with the label, where it is not plain IEEE."""
        return what if self == IEEE else f"{what}, {self.label}"

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Variant:
        """Of a row or a summary; records from before there were several have IEEE figures."""
        return cls(row.get("precision", "ieee"), row.get("prepared", False))


IEEE = Variant()


def named(texts: Sequence[str], prepared: bool) -> list[Variant]:
    """Precisions by name, each text one or several with commas; ``prepared``: a second variant of those that split.

    Raises:
        InvalidValue: a precision that there is not, or nothing to prepare: IEEE kernels take B as it lies.
    """
    chosen = []
    for name in dict.fromkeys(part.strip() for text in texts for part in text.split(",")):
        check_precision(name)
        chosen.append(Variant(name))
        if prepared and name != IEEE.precision:
            chosen.append(Variant(name, prepared=True))
    if prepared and chosen == [IEEE]:
        raise InvalidValue("--prepared splits B beforehand, and precision 'ieee' splits nothing; add --precision with "
                           f"one of {', '.join(name for name in PRECISIONS if name != IEEE.precision)}")
    return chosen
