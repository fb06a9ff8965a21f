"""Checkpoints: what a job needs to go on, published whole or not at all."""

from .api import Checkpoint, latest, load, save

__all__ = ["Checkpoint", "latest", "load", "save"]
