"""The version, which records and the build name."""

__version__ = "0.1.0"
