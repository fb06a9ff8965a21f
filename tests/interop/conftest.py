"""Communicators of mpi4py and ours of the same ranks, which need processes."""

import os

import pytest

from hpcpar.comm import launch


@pytest.fixture
def comms(ranks, monkeypatch):
    """Return a function that runs ``body(plain, ours)`` on every rank."""
    if not launch.is_launched(os.environ):
        pytest.skip("needs ranks that are processes: it runs under mpiexec")

    def run(body, **limits):
        """Let the engine have every call, unless `limits` says what it gets."""
        from hpcpar.interop.mpi4py import Comm, Limits, _Accelerated

        limits = limits or {"least": 1, "least_moved": 1, "at_once": 1}
        monkeypatch.setattr(_Accelerated, "_limits", Limits(**limits))  # of all its kinds

        def with_both(group):
            plain = group.mpi_comm.Dup()
            ours = Comm(plain)
            try:
                body(plain, ours)
            finally:
                ours.Free()

        ranks(with_both)

    return run
