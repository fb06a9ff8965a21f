"""The version, compared across ranks at start."""

__version__ = "0.1.0"
