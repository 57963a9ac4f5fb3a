"""The settings of groups: names of assignors and protocols."""

from __future__ import annotations

from collections.abc import Iterable

from kbatch.options import did_you_mean

__all__ = ["COOPERATIVE", "EAGER_ASSIGNORS", "assignor_names", "checked_choice"]

COOPERATIVE = "cooperative-sticky"
EAGER_ASSIGNORS = ("range", "roundrobin")
# The assignor classes of Java clients.
_JAVA_CLASSES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": COOPERATIVE,
}
_JAVA_PACKAGE = "org.apache.kafka.clients.consumer."


def assignor_names(values: Iterable[str]) -> tuple[str, ...]:
    """Return the assignors in ``partition.assignment.strategy``, given as names or Java classes.

    Raises
    ------
    ValueError
    """
    found = []
    known = (*EAGER_ASSIGNORS, COOPERATIVE)
    for value in values:
        name = _JAVA_CLASSES.get(value.removeprefix(_JAVA_PACKAGE), value)
        if name not in known:
            raise ValueError(
                f"partition.assignment.strategy must be some of {', '.join(known)}, got {value!r}"
                f"{did_you_mean(name, known)}"
            )
        found.append(name)
    if not found:
        raise ValueError(f"partition.assignment.strategy must be some of {', '.join(known)}")
    return tuple(dict.fromkeys(found))


def checked_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return a value in lower case; raise ValueError if it is not one of the choices."""
    word = value.strip().lower()
    if word not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{did_you_mean(word, choices)}")
    return word
