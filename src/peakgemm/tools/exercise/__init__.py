"""Exercises on the rungs: a rung's source with a hole, and its counters as the goal."""

from .check import Finding, check
from .exercises import EXERCISES, Exercise, exercise

__all__ = ["EXERCISES", "Exercise", "Finding", "check", "exercise"]
