"""Every exception of the library.

Messages have one order: verb, argument, value, rule, ``[rank r/n, group 'tp', #seq]``, next step.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "BackendUnavailable",
    "CheckpointError",
    "CollectiveTimeout",
    "GroupFailed",
    "HpcparError",
    "LaunchError",
    "MismatchError",
    "RankFailed",
    "UnsupportedError",
]


class HpcparError(Exception):
    """Base of every error that hpcpar raises on purpose."""


class ArgumentError(HpcparError, ValueError):
    """An argument breaks a rule that this rank can check by itself; nothing was sent."""


class UnsupportedError(HpcparError, TypeError):
    """The dtype, operation or array kind has no meaning here; nothing was sent."""


class MismatchError(HpcparError):
    """The ranks of a group disagree on a call; raised on all of them, the group works on."""


class CollectiveTimeout(HpcparError, TimeoutError):  # noqa: N818 - the field's name for it
    """A deadline passed while other ranks were missing; the group is failed afterwards."""


class RankFailed(HpcparError):  # noqa: N818
    """Another rank died or left while this one needed it."""


class GroupFailed(HpcparError):  # noqa: N818
    """The group was aborted, or an earlier failure made it unusable."""


class LaunchError(HpcparError):
    """The job was started in a way that cannot work; the message names the right way."""


class BackendUnavailable(HpcparError):  # noqa: N818
    """A library or device that the request needs is not there."""


class CheckpointError(HpcparError):
    """A checkpoint is missing, incomplete, damaged or does not fit."""
