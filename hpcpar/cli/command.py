"""What a subcommand of `hpcpar` consists of."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """One subcommand; a module defines it as ``COMMAND`` and the table in `hpcpar.cli` names it.

    Attributes
    ----------
    name : str
        The word after ``hpcpar``.
    summary : str
        One line for ``hpcpar --help``.
    description : str
        What ``hpcpar NAME --help`` says first.
    add_arguments : callable
        Adds the options to a parser.
    call : callable
        Does the work for the parsed options, and returns the exit code.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[ArgumentParser], None]
    call: Callable[[Namespace], int]
