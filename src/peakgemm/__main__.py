"""``python -m peakgemm``."""

from .cli import main

main()
