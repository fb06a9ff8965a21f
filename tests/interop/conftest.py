"""Communicators of mpi4py and ours of the same ranks, which need processes."""

import pytest

from hpcpar.comm import launch


@pytest.fixture
def comms(ranks):
    """Return a function that runs ``body(plain, ours)`` on every rank."""
    import os

    if not launch.is_launched(os.environ):
        pytest.skip("needs ranks that are processes: it runs under mpiexec")

    def run(body):
        from hpcpar.interop.mpi4py import Comm

        def with_both(group):
            plain = group.mpi_comm.Dup()
            ours = Comm(plain)
            try:
                body(plain, ours)
            finally:
                ours.Free()

        ranks(with_both)

    return run
