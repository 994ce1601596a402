"""From what a caller names to a program: PTX found and parsed, functions linked, blocks and live registers found."""
