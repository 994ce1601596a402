"""Edits of a cubin as text: small, to be reviewed, and bound to the one file that they were made for.

JSON lines. The first names the kernel and the SHA-256 of the cubin; each other has an address, the old and the new word
in hexadecimal, and both as text::

    {"kernel": "sgemm", "arch": "sm_90", "cubin": "3f...", "result": "a0..."}
    {"address": "0x1a0", "old": "0x...", "new": "0x...", "was": "FFMA 1", "is": "FFMA 2"}
"""

from __future__ import annotations

import hashlib
import json

from ..errors import InvalidValue
from .elf import WORD_BYTES, Cubin
from .encoding import Word, decode
from .hazards import check_cubin


def make(before: bytes, after: bytes, name: str = "") -> str:
    """The patch from one cubin to another that differs in the words of one kernel alone.

    Raises:
        InvalidValue: they differ elsewhere.
    """
    first, second = Cubin.read(before), Cubin.read(after)
    kernel = first.kernel(name)
    old, new = first.words(kernel.name), second.words(kernel.name)
    if first.with_words(new, kernel.name) != after:
        raise InvalidValue(f"the cubins differ in more than the code of {kernel.name}")
    lines = [json.dumps({"kernel": kernel.name, "arch": first.arch, "cubin": first.digest, "result": second.digest})]
    for place, (was, now) in enumerate(zip(old, new, strict=True)):
        if was != now:
            lines.append(json.dumps({
                "address": f"{place * WORD_BYTES:#x}", "old": f"{was:#034x}", "new": f"{now:#034x}",
                "was": text(decode(was, first.arch)), "is": text(decode(now, first.arch))}))
    return "\n".join(lines) + "\n"


def text(word: Word) -> str:
    """A word in a line: control bits, opcode, registers in the order of their fields (destination, a, b, c)."""
    registers = ", ".join(f"{field.kind}{number}" for field, number in word.named if field.kind in ("R", "UR"))
    return f"{word.control} {word.name} {registers}".strip()


def apply(cubin: bytes, patch: str) -> bytes:
    """A patched copy of a cubin; ``cubin`` must be the file that the patch names, and the result the one it promises.

    Raises:
        InvalidValue: another cubin, a patch that is damaged, or a result with hazards.
    """
    original = Cubin.read(cubin)
    try:
        head, *rows = [json.loads(line) for line in patch.splitlines() if line.strip()]
        name, digest, result = head["kernel"], head["cubin"], head["result"]
        changes = [(int(row["address"], 16), int(row["old"], 16), int(row["new"], 16)) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidValue(f"this is no patch: {type(error).__name__} {error}; it is JSON lines, the first with "
                           "kernel, cubin and result") from None
    if original.digest != digest:
        raise InvalidValue(f"the patch is for the cubin of SHA-256 {digest}, not for that of {original.digest}; "
                           "another compiler or source made it, and the compiler's code runs unpatched")
    words = list(original.words(name))
    for address, old, new in changes:
        place, rest = divmod(address, WORD_BYTES)
        if rest or place >= len(words) or words[place] != old:
            raise InvalidValue(f"address {address:#x} does not hold {old:#034x}; the patch is damaged")
        words[place] = new
    made = original.with_words(words, name)
    if (digest := hashlib.sha256(made).hexdigest()) != result:
        raise InvalidValue(f"the patched cubin has SHA-256 {digest}, the patch says {result}; the patch is damaged")
    if faults := check_cubin(Cubin.read(made)):
        raise InvalidValue(f"the patched cubin has {len(faults)} hazards, the first at {faults[0].address:#x}: "
                           f"{faults[0].message}")
    return made
