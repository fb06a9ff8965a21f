"""Readers of the record: what goes over the wire, and when."""

from .counter import Row, Wire, wire
from .merge import load_records, save_record, summary
from .timeline import RankRecord, trace, trace_events

__all__ = [
    "RankRecord",
    "Row",
    "Wire",
    "load_records",
    "save_record",
    "summary",
    "trace",
    "trace_events",
    "wire",
]
