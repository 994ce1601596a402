"""``peakgemm``, and ``python -m peakgemm``."""

import sys


def main() -> None:
    """Run the command line. ``run`` becomes another program, and does without importing all other commands."""
    if sys.argv[1:2] == ["run"] and not {*sys.argv[2:3]} & {"-h", "--help"}:
        from .errors import PeakgemmError
        from .run import launch

        try:
            launch.main(sys.argv[2:])
        except PeakgemmError as error:
            print(f"peakgemm: {error}", file=sys.stderr)
            raise SystemExit(2) from None
    from .cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
