"""Help for tests of programs that use hpcpar: ranks as threads."""

from .comm.world import run_ranks

__all__ = ["run_ranks"]
