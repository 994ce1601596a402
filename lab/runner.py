"""How the workshop's commands are run: with the errors, exit codes and options of `peakgemm`'s own."""

from __future__ import annotations

from collections.abc import Callable

import typer

from peakgemm import cli


def run(command: Callable[..., None]) -> None:
    """Run ``command`` as a program; its parameters are the options."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                      context_settings={"help_option_names": ["-h", "--help"]})
    app.command()(command)
    cli.run(app)
