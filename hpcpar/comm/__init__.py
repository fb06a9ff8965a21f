"""TALK: how ranks start, form groups, and exchange arrays and objects.

A verb (`verbs`, `group`) becomes a request (`request` and the ``*_requests``), which settles
layout, dtype and sizes; `runner` checks, records and drives it; a backend (`backend`: `threads`,
`mpi`, `fake`) carries flat buffers. Start and end are in `launch`, `bootstrap`, `world`, `guard`.
"""
