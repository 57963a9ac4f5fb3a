"""Times, durations and sizes in the forms in which callers have them, as integers.

The command line parses its arguments with this module. Its help must not wait for the import of NumPy, so that only the
functions import it.
"""

from __future__ import annotations

import datetime
import re
import sys
import time
import warnings
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "EPOCH",
    "INT32_MAX",
    "INT64_MAX",
    "MAX_DECOMPRESSED_BYTES",
    "SizeLike",
    "TimeLike",
    "bounds_text",
    "callers_stacklevel",
    "fixed_time",
    "is_before_now",
    "largest",
    "parse_duration",
    "parse_size",
    "parse_time",
    "size_between",
    "smallest",
]

# The largest values of the wire's signed integers.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# The default of `kbatch.Limits`.
MAX_DECOMPRESSED_BYTES = 256 << 20

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

# `datetime` and `pandas.Timestamp` are dates; `pandas.Timedelta` is a timedelta.
TimeLike: TypeAlias = "int | np.integer | str | datetime.date | datetime.timedelta | np.datetime64 | np.timedelta64"
SizeLike = int | str

_MILLISECOND = datetime.timedelta(milliseconds=1)
# A number with fewer digits could be a year.
_MILLISECONDS_TEXT = re.compile(r"0|[-+]?[0-9]{5,}", re.ASCII)
_AGO_TEXT = re.compile(r"-?\d{1,15}\s*(?:ms|s|min|m|h|d)", re.ASCII)
_DURATIONS = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_EXPECTED_TEXT = (
    "a time such as 2026-03-01 or 2026-03-01T06:00:00Z, milliseconds since 1970, or a duration before now such as -1h"
)
_EXPECTED_TIME = (
    "a time: datetime, numpy.datetime64, a text in ISO 8601, milliseconds since 1970 as an integer, or a timedelta "
    "before now"
)
# A maximum from here on is left out of messages about values that are too small.
_HUGE = 1 << 62
# The years 2000 to 2100, in seconds since 1970, and the units that are mistaken for milliseconds.
_PLAUSIBLE_SECONDS = (946_684_800, 4_133_980_800)
_MISTAKEN_UNITS = (("seconds", 1), ("microseconds", 10**6), ("nanoseconds", 10**9))


def parse_time(value: TimeLike, name: str = "") -> int:
    """Return a time in milliseconds since the epoch (UTC).

    Times of a finer unit are rounded up: among timestamps in milliseconds, "not before" and "before" then select the
    same records as the exact time.

    Parameters
    ----------
    value : datetime, date, datetime64, timedelta, timedelta64, int or str
        A time without a time zone is UTC. A timedelta is a time before now. Integers are milliseconds. A text is in
        ISO 8601, milliseconds of at least five digits, or a duration before now with its unit (see `parse_duration`),
        such as ``"-1h"`` or ``"1h"``.
    name : str
        The name of the parameter, for messages. Without it they begin with "must be".

    Warns
    -----
    UserWarning
        At the code that called the package, if an integer is a time outside of the years 2000 to 2100, and would be
        inside as seconds, microseconds or nanoseconds.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> import datetime
    >>> from kbatch.quantities import parse_time
    >>> parse_time("2023-11-14T22:13:20"), parse_time(datetime.datetime(2023, 11, 14, 22, 13, 20))
    (1700000000000, 1700000000000)
    """
    import numpy as np

    prefix = f"{name} " if name else ""
    try:
        milliseconds = _milliseconds_of(value)
    except OverflowError as error:
        raise ValueError(f"{prefix}must be within the range of dates, got {value!r}") from error
    if milliseconds is None:
        kind = ValueError if isinstance(value, str | np.datetime64 | np.timedelta64 | datetime.date) else TypeError
        expected = _EXPECTED_TEXT if isinstance(value, str) else _EXPECTED_TIME
        raise kind(f"{prefix}must be {expected}, got {value!r}")
    if not -(1 << 63) <= milliseconds < 1 << 63:
        raise ValueError(f"{prefix}must be a time in the range of an int64 of milliseconds, got {value!r}")
    if isinstance(value, int | np.integer | str):
        _warn_of_unit(milliseconds, prefix)
    return milliseconds


def _milliseconds_of(value: object) -> int | None:
    """Return a time in milliseconds, rounded up, or None if `value` is not a time."""
    import numpy as np

    if isinstance(value, bool | np.bool_):
        return None
    # timedelta64 is a NumPy integer type.
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _milliseconds_of_numpy(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, datetime.timedelta):
        return None if value != value else _now() + -(value // _MILLISECOND)
    if isinstance(value, datetime.datetime):
        if value != value:  # pandas.NaT
            return None
        when = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return int(-((EPOCH - when) // _MILLISECOND))
    if isinstance(value, datetime.date):
        return (value.toordinal() - EPOCH.toordinal()) * 86_400_000
    return _milliseconds_of_text(value) if isinstance(value, str) else None


def _milliseconds_of_numpy(value: np.datetime64 | np.timedelta64) -> int | None:
    import numpy as np

    if np.isnat(value):
        return None
    if isinstance(value, np.timedelta64):
        return _now() - int(value.astype("timedelta64[ms]").astype(np.int64))
    floor = value.astype("datetime64[ms]")
    return int(floor.astype(np.int64)) + bool(floor < value)


def _milliseconds_of_text(text: str) -> int | None:
    text = text.strip()
    if _MILLISECONDS_TEXT.fullmatch(text):
        return int(text)
    if _AGO_TEXT.fullmatch(text.lower()):
        return _now() - round(parse_duration(text.removeprefix("-")) * 1000)
    try:
        return _milliseconds_of(datetime.datetime.fromisoformat(text))
    except ValueError:
        return None


def is_before_now(value: object) -> bool:
    """Whether a time is given as a duration before now.

    Examples
    --------
    >>> from kbatch.quantities import is_before_now
    >>> is_before_now("-1h"), is_before_now("2023-11-14")
    (True, False)
    """
    if isinstance(value, str):
        return _AGO_TEXT.fullmatch(value.strip().lower()) is not None
    return isinstance(value, datetime.timedelta) or type(value).__name__ == "timedelta64"


def _now() -> int:
    return time.time_ns() // 1_000_000


def _warn_of_unit(milliseconds: int, prefix: str) -> None:
    first, last = _PLAUSIBLE_SECONDS
    if first * 1000 <= milliseconds < last * 1000:
        return
    for unit, per_second in _MISTAKEN_UNITS:
        if first * per_second <= milliseconds < last * per_second:
            when = EPOCH + datetime.timedelta(seconds=milliseconds // per_second)
            warnings.warn(
                f"{prefix}{milliseconds} is in milliseconds, outside of the years 2000 to 2100; as {unit} it would be "
                f"{when:%Y-%m-%dT%H:%M:%SZ}",
                UserWarning,
                stacklevel=callers_stacklevel(),
            )


def callers_stacklevel() -> int:
    """Return the ``stacklevel`` with which a warning of the calling function names the code outside of the package."""
    level, frame = 1, sys._getframe(1)
    # The package's context managers are entered and left by functions of contextlib.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "kbatch",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return level


def fixed_time(value: TimeLike, name: str) -> np.datetime64:
    """Return a time for calls that parse it again: a duration before now becomes one time, and only this call warns."""
    import numpy as np

    return np.datetime64(parse_time(value, name), "ms")


def parse_duration(text: str) -> float:
    """Return seconds: ``500ms``, ``30s``, ``15m``, ``1h``; a number without a unit is milliseconds, as in Spark."""
    found = re.fullmatch(r"\s*(\d{1,15})\s*([a-z]*)\s*", text.lower(), re.ASCII)
    if not found or found[2] not in _DURATIONS:
        raise ValueError(f"must be a time such as 500ms, 30s or 15m, got {text!r}")
    return float(int(found[1]) * _DURATIONS[found[2]])


def parse_size(value: SizeLike) -> int:
    """Return a number of bytes: ``67108864``, ``64m``, ``64 MiB`` (powers of 1024, as in Spark's own settings).

    Examples
    --------
    >>> from kbatch.quantities import parse_size
    >>> parse_size("64m"), parse_size(67108864)
    (67108864, 67108864)
    """
    if not isinstance(value, str):
        import numpy as np

        if isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
            return int(value)
    text = value if isinstance(value, str) else ""
    found = re.fullmatch(r"\s*([-+]?\d{1,20})\s*([kmgt]?)(?:i?b)?\s*", text.lower(), re.ASCII)
    if not found:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"must be a number of bytes such as 67108864 or 64m, got {value!r}")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]


def size_between(name: str, value: SizeLike, minimum: int, maximum: int = INT64_MAX) -> int:
    """Return the number of bytes of the parameter `name`, if it is within these bounds.

    Raises
    ------
    TypeError, ValueError
        The message begins with the name.
    """
    try:
        size = parse_size(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} {error}") from None
    if not minimum <= size <= maximum:
        raise ValueError(f"{name} must be {bounds_text(minimum, maximum, size)}")
    return size


def bounds_text(minimum: int, maximum: int, value: int) -> str:
    """Return the bounds that `value` violates for a message: ``1 to 64, got 65``; a huge maximum only if it matters.

    Examples
    --------
    >>> from kbatch.quantities import bounds_text
    >>> bounds_text(0, 2**63 - 1, -1), bounds_text(0, 2**63 - 1, 2**63)
    ('at least 0, got -1', 'at most 9,223,372,036,854,775,807, got 9,223,372,036,854,775,808')
    """
    if maximum < _HUGE:
        return f"{minimum} to {maximum}, got {value}"
    return f"at least {minimum}, got {value}" if value < minimum else f"at most {maximum:,}, got {value:,}"


def smallest(*numbers: int | None) -> int | None:
    """Return the smallest number; None counts as missing."""
    return min((number for number in numbers if number is not None), default=None)


def largest(*numbers: int | None) -> int | None:
    """Return the largest number; None counts as missing."""
    return max((number for number in numbers if number is not None), default=None)
