"""The version, which records and the build name."""

__version__ = "0.2.0"
