"""Command lines parsed as the command line would, without running anything."""

from __future__ import annotations

import shlex
from typing import Any

import typer.main

from peakgemm import cli

APP: Any = typer.main.get_command(cli.app)


def parsed(line: str) -> dict[str, Any]:
    """The parameters of ``peakgemm ...``; raises what click raises of a line that is wrong."""
    program, *words = shlex.split(line)
    assert program == "peakgemm", line
    command, context = APP, APP.make_context("peakgemm", list(words))
    while hasattr(command, "commands"):
        left = [*getattr(context, "_protected_args", []), *context.args]
        name, command, words = command.resolve_command(context, left)
        context = command.make_context(name, list(words), parent=context)
    return dict(context.params)
