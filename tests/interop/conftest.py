"""Communicators of mpi4py and ours of the same ranks, which need processes."""

import pytest

from hpcpar.comm import launch


@pytest.fixture
def comms(ranks, monkeypatch):
    """Return a function that runs ``body(plain, ours)`` on every rank."""
    import os

    if not launch.is_launched(os.environ):
        pytest.skip("needs ranks that are processes: it runs under mpiexec")

    def run(body, **limits):
        """Let the engine have every call, unless `limits` says what it gets."""
        from hpcpar.interop.mpi4py import Comm, Limits

        limits = limits or {"least": 1, "least_moved": 1, "at_once": 1}
        monkeypatch.setattr(Comm.__mro__[1], "_limits", Limits(**limits))  # of all its kinds

        def with_both(group):
            plain = group.mpi_comm.Dup()
            ours = Comm(plain)
            try:
                body(plain, ours)
            finally:
                ours.Free()

        ranks(with_both)

    return run
