"""docs/api.md has every public name, with the signature that it has, and its examples run without a GPU."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import peakgemm as pg

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
MODULES = ("linalg", "torch", "jax", "cupy", "distributed", "simulator")
TITLES = re.findall(r"^### `([\w.]+)(\(.*\))?`$", PAGE, re.M)
PUBLIC = [*sorted(set(pg.__all__) - set(MODULES)),
          *(f"{module}.{name}" for module in MODULES for name in getattr(pg, module).__all__)]


def found(name: str) -> Any:
    module, _, own = name.rpartition(".")
    return getattr(getattr(pg, module) if module else pg, own)


def plain(function: Any) -> str:
    """The signature without types."""
    signature = inspect.signature(function)
    parameters = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def test_every_public_name_is_on_the_page_and_nothing_else() -> None:
    titled = dict(TITLES)
    assert set(titled) <= set(PUBLIC) and len(TITLES) == len(titled)
    for name in PUBLIC:
        own = name.rpartition(".")[2]
        if name.startswith("torch.") and own != "use":  # what the library itself calls, for which torch must be there
            assert f"`{own}`" in PAGE, name
        elif inspect.isfunction(found(name)):
            assert titled.get(name) == plain(found(name)), name
        else:
            assert name in titled or ("." in name and re.search(rf"`(?:{re.escape(name)}|{own})[`(]", PAGE)), name


def test_members_of_a_plan() -> None:
    """Each is on the page; methods with their signatures."""
    for name, member in vars(pg.Plan).items():
        if not name.startswith("_"):
            call = plain(member).replace("(self, ", "(").replace("(self)", "()") if callable(member) else ""
            assert f"`{name}{call}`" in PAGE, name


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    assert len(examples) > 12
    for example in examples:
        exec(compile(example, "docs/api.md", "exec"), names)
