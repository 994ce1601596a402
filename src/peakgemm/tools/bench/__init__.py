"""Measuring: the one timer, the peers to compare with, and the JSON records."""
