"""The version, which `pyproject.toml` has too."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
