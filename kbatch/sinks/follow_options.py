"""The options for when an export that follows logs commits and ends. Command line parsers import this module."""

from __future__ import annotations

from dataclasses import dataclass

from kbatch import options as opts
from kbatch.arguments import check_fields
from kbatch.options import option

__all__ = ["FollowOptions"]


@opts.documented
@dataclass(frozen=True)
class FollowOptions:
    """When to commit, and when to end.

    Attributes
    ----------
    {options}

    Raises
    ------
    OptionError
        For values that are not valid.

    Examples
    --------
    >>> from kbatch.sinks.follow_options import FollowOptions
    >>> FollowOptions(commit_interval="1m").commit_interval
    60.0
    """

    # A commit has at least one file for each topic-partition with new records.
    commit_interval: float = option(
        opts.duration("1m", lambda value: f"{value / 60:g}m"), 300.0, flag="--commit-interval",
        help="commit when a record has waited for this time, such as 30s or 5m",
    )  # fmt: skip
    commit_bytes: int = option(
        opts.size(), 1 << 30, flag="--commit-size",
        help="commit when this number of bytes of the logs is waiting, and read about this number at most for a commit",
    )  # fmt: skip
    available_now: bool = option(
        opts.BOOLEAN, False, flag="--available-now",
        help="end when everything that the logs have at the start is committed, like Spark's trigger of this name",
    )  # fmt: skip

    def __post_init__(self) -> None:
        opts.check_options(self)
        check_fields(self)
