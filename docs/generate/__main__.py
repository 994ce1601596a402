"""The tables and plots of the README and of docs/, from results/.

    python -m docs.generate            write what is out of date
    python -m docs.generate --check    only say what is, and exit 1
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.publish import Checkout

if __name__ == "__main__":
    outcome = Checkout(Path(__file__).resolve().parents[2]).publish(check="--check" in sys.argv[1:])
    print("\n".join(outcome.told), file=sys.stderr if outcome.failed else sys.stdout)
    sys.exit(outcome.failed)
