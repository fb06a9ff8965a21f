"""Sphinx configuration: ``sphinx-build docs build/docs``."""

from importlib import metadata

project = "hpcpar"
author = "The hpcpar developers"
copyright = f"2026, {author}"  # noqa: A001
release = metadata.version("hpcpar")

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
html_theme = "alabaster"
html_theme_options = {"description": metadata.metadata("hpcpar")["Summary"]}

# Examples that run on several ranks are marked "python ranks=2"; colour them as Python.
suppress_warnings = ["myst.header"]
numpydoc_show_class_members = False
autodoc_typehints = "none"  # numpydoc sections say it in words
