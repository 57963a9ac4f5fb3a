"""Regular expressions of Java that choose topics, as Python's.

Spark's Kafka source has Java's regular expressions (``subscribePattern``). Those that Python reads with the same
meaning are compiled; the others are refused with the difference, so that no other topics are chosen than there.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

__all__ = ["java_pattern"]

# Escapes that mean the same for the names of topics, which have ASCII letters, digits, '.', '_' and '-' only.
_SAME_ESCAPE = re.compile(r"\\(?:[dDwWsStnrfa]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^a-zA-Z0-9])", re.DOTALL)
_OUTSIDE_CLASS = re.compile(r"\\(?:[bBAZ]|[1-9](?!\d))")
_QUOTATION = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_REPETITION = re.compile(r"\{\d+(,\d*)?\}")
_GROUP = re.compile(r"\(\?(?:[:=!>]|<[=!]|[ims]*(?:-[ims]+)?:)")
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_NAMED_REFERENCE = re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>")
_INLINE_FLAGS = re.compile(r"\(\?[ims]+\)")


def java_pattern(text: str) -> re.Pattern[str]:
    r"""Return a regular expression of Java as a pattern of Python that matches the same names of topics.

    Raises
    ------
    ValueError
        If Java, or Python, does not accept it, or if it has a part that Python does not have or reads otherwise. The
        message continues after the name of an option.

    Examples
    --------
    >>> from kbatch.java_patterns import java_pattern
    >>> [bool(java_pattern(r"orders\.(?<region>eu|us)").fullmatch(name)) for name in ("orders.eu", "orders-eu")]
    [True, False]
    >>> java_pattern("[a-z&&[^b]].*")
    Traceback (most recent call last):
    ValueError: must be a regular expression that Java and Python read alike, got '[a-z&&[^b]].*': ...
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"must be a regular expression as a str, got {text!r}")
    translated = "".join(_translated_parts(text))
    try:
        with warnings.catch_warnings():
            # Of parts to which Python may give another meaning.
            warnings.simplefilter("error", FutureWarning)
            # Java does not match letters outside of ASCII in disregard of case.
            return re.compile(translated, re.ASCII)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression, got {text!r}: {error}") from None


def _translated_parts(text: str) -> Iterator[str]:
    """Yield the parts of a regular expression as Python's; raise for those that have none."""
    at, in_class = 0, False
    while at < len(text):
        rest = text[at : at + 3]
        found = _SAME_ESCAPE.match(text, at)
        if quoted := _QUOTATION.match(text, at):
            if in_class:
                raise _difference(text, "has \\Q in a class of characters")
            yield "".join(map(re.escape, quoted[1]))
            at = quoted.end()
            continue
        if found is None and not in_class:
            found = _OUTSIDE_CLASS.match(text, at) or _REPETITION.match(text, at)
            if named := _NAMED_GROUP.match(text, at):
                yield f"(?P<{named[1]}>"
                at = named.end()
                continue
            if named := _NAMED_REFERENCE.match(text, at):
                yield f"(?P={named[1]})"
                at = named.end()
                continue
            if rest.startswith(r"\z"):
                yield r"\Z"
                at += 2
                continue
        if found is None:
            if rest[0] == "\\":
                raise _difference(text, f"has {rest[:2]}, whose meaning differs")
            if in_class:
                _check_in_class(text, rest)
                in_class = rest[0] != "]"
            else:
                found = _check_outside(text, at)
                in_class = rest[0] == "["
        length = 1 if found is None else len(found[0])
        if in_class and found is None and rest[0] == "[":
            length += rest.startswith("[^")
            if rest[length : length + 1] == "]":
                raise _difference(text, "begins a class of characters with ']', which has to be escaped")
        yield text[at : at + length]
        at += length


def _check_in_class(text: str, rest: str) -> None:
    """Raise for the union and the intersection of classes, which Python does not have."""
    if rest[0] == "[":
        raise _difference(text, "has '[' in a class of characters, which means a union in Java")
    if rest.startswith("&&"):
        raise _difference(text, "has '&&' in a class of characters, which means an intersection in Java")


def _check_outside(text: str, at: int) -> re.Match[str] | None:
    """Return the beginning of a group; raise for groups, flags and braces that mean something else in Java."""
    if text[at] == "{":
        raise _difference(text, "has '{' that does not begin a repetition such as {2} or {2,5}")
    if not text.startswith("(?", at):
        return None
    flags = _INLINE_FLAGS.match(text, at)
    if flags is not None and at:
        raise _difference(text, f"has {flags[0]} that is not at its beginning")
    found = flags or _GROUP.match(text, at)
    if found is None:
        raise _difference(text, f"has a group that begins with {text[at : at + 4]}")
    return found


def _difference(text: str, reason: str) -> ValueError:
    return ValueError(f"must be a regular expression that Java and Python read alike, got {text!r}: it {reason}")
