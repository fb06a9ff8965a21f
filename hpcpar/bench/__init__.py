"""MEASURE: benchmarks whose every result is checked before its time is believed.

`collectives` compares the verbs with mpi4py, Gloo and a plain copy; `pack` and `startup` measure
on one process. All return plain dicts, ready for JSON; `table` turns them into text. The command
line is in `hpcpar.cli.bench`.
"""
