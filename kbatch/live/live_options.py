"""The options of a live read: how it returns records, and how it handles deleted records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from kbatch import options as opts
from kbatch.arguments import check_fields
from kbatch.keywords import describes
from kbatch.live.counters import MetricsCallback
from kbatch.options import option
from kbatch.quantities import SizeLike

__all__ = ["LiveArguments", "LiveOptions"]

# How long records wait for others if only the size of a table is set.
_DEFAULT_SECONDS = 1.0


@opts.documented
@dataclass(frozen=True)
class LiveOptions:
    """The options of a live read: how it returns records, and how it handles deleted records.

    Attributes
    ----------
    {options}

    Raises
    ------
    OptionError
        For values that are not valid.

    Examples
    --------
    >>> from kbatch.live.live_options import LiveOptions
    >>> LiveOptions(flush_rows=1000).flush_seconds, LiveOptions(flush_interval="500ms").flush_seconds
    (1.0, 0.5)
    """

    flush_rows: int | None = option(
        opts.whole_number(1), None, flag="--flush-rows",
        help="gather the records of small responses in one table until it has this number of records",
    )  # fmt: skip
    flush_bytes: int | None = option(
        opts.size(), None, flag="--flush-size",
        help="gather the records of small responses in one table until their batches have this number of bytes; at "
        "most a quarter of the memory of the read",
    )  # fmt: skip
    flush_interval: float | None = option(
        opts.duration("1s", lambda value: f"{value:g}s"), None, flag="--flush-interval",
        help="gather the records of small responses in one table until the first of them has waited for this time, "
        "such as 500ms or 5s. Without it, 1s if one of the other two is given; else each response is a table",
    )  # fmt: skip
    fail_on_data_loss: bool = option(
        opts.BOOLEAN, True,
        flag={
            "--allow-missing-offsets": opts.switch_off(
                "report records that are gone before they are read, instead of failing: deleted by retention or a "
                "truncation, or with their topic. The exit status is then 3"
            )
        },
        help="whether it is an error if records are gone before they are read: deleted by retention or a truncation, "
        "or with their topic. With false they are reported, and the read continues with those that remain",
    )  # fmt: skip

    def __post_init__(self) -> None:
        opts.check_options(self)
        check_fields(self)

    @property
    def flush_seconds(self) -> float | None:
        """How long records may wait for others, or None if each response becomes a table."""
        if self.flush_interval is not None:
            return self.flush_interval or None
        return None if self.flush_rows is None and self.flush_bytes is None else _DEFAULT_SECONDS


@describes(LiveOptions)
class LiveArguments(TypedDict, total=False):
    """The arguments of `consume` in `LiveOptions`, and the callback for counters.

    Attributes
    ----------
    on_metrics : callable, default None
        A function that receives a snapshot of `Consumer.metrics`. The reading thread calls it at most once per second,
        and once more at the end of the read.
    """

    flush_rows: int | None
    flush_bytes: SizeLike | None
    flush_interval: float | str | None
    fail_on_data_loss: bool
    on_metrics: MetricsCallback | None
