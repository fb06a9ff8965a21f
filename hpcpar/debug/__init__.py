"""Readers of the record: what goes over the wire, and when."""

from .counter import Row, Wire, wire
from .timeline import RankRecord, trace, trace_events

__all__ = ["RankRecord", "Row", "Wire", "trace", "trace_events", "wire"]
