"""Sphinx configuration: ``sphinx-build -W docs build/docs``."""

import tomllib
from pathlib import Path

_pyproject = Path(__file__).parents[1] / "pyproject.toml"
_meta = tomllib.loads(_pyproject.read_text(encoding="utf-8"))["project"]

project = _meta["name"]
author = "The hpcpar developers"
copyright = f"2026, {author}"
release = _meta["version"]

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
html_theme = "alabaster"
html_theme_options = {"description": _meta["description"]}
numpydoc_show_class_members = False
autodoc_typehints = "none"  # the numpydoc sections say it in words
