"""What the pages say in figures is what results/ holds."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pages_are_up_to_date():
    done = subprocess.run([sys.executable, "tools/publish.py", "--check"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
