"""Streams of instructions with chosen registers, timed beside a model of the register file."""
