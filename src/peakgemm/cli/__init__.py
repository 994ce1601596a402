"""The command line: one small file per command, no logic of its own."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..errors import PeakgemmError
from ..version import __version__
from . import (
    accuracy,
    bench,
    cache,
    doctor,
    exercise,
    explore,
    inspect,
    ladder,
    limits,
    multiply,
    report,
    sass,
    simulate,
    sweep,
    tune,
    verify,
)
from .examples import epilog
from .run import SETTINGS as RUN_SETTINGS
from .run import command as run_program
from .stdout import guarded

EPILOG = """\b
Exit codes: 0 done, 1 something was found or failed, 2 bad input or something missing, 130 interrupted.
peakgemm --install-completion completes commands and options in your shell."""

app = typer.Typer(name="peakgemm", no_args_is_help=True, epilog=EPILOG, pretty_exceptions_enable=False,
                  rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
for _module in (ladder, sweep, bench, tune, accuracy, verify, simulate, limits, report, multiply, explore, exercise,
                doctor):
    _name = _module.__name__.rpartition(".")[2]
    app.command(_name, epilog=epilog(_name))(_module.command)
app.command("run", epilog=epilog("run"), context_settings=RUN_SETTINGS)(run_program)
for _group in (inspect, sass, cache):
    _name = _group.__name__.rpartition(".")[2]
    app.add_typer(_group.app, name=_name, epilog=epilog(_name))


def _version(asked: bool) -> None:
    if asked:
        print(f"peakgemm {__version__}")
        raise typer.Exit


@app.callback()
def options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                                  help="Print the version and exit.")] = False) -> None:
    """FP32 matrix multiplication on NVIDIA GPUs: kernels, timings, and the reasons behind them."""


def main() -> None:
    """Run the command line."""
    run(app)


def run(app: typer.Typer) -> None:
    """Run commands; a `PeakgemmError` is one message on stderr and exit code 2, an interrupt exit code 130.

    Output that is lost, on a full disk or as its reader has left, ends the command with exit code 1; with ``--json``
    when its record is written.
    """
    with guarded(go_on=any(word.partition("=")[0] == "--json" for word in sys.argv)) as lost:
        failed: OSError | None = None
        try:
            app()
            code: Any = 0
        except SystemExit as end:
            code = end.code
        except PeakgemmError as error:
            print(f"peakgemm: {error}", file=sys.stderr)
            code = 2
        except KeyboardInterrupt:  # before typer, which does the same, has begun
            code = 130
        except OSError as error:
            failed, code = error, 1
        if lost():
            code = code or 1
        elif failed is not None:
            raise failed
    raise SystemExit(code)
