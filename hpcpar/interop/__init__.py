"""Other libraries' faces on this one: `hpcpar.interop.mpi4py`, `hpcpar.interop.torch`."""
