"""Regular expressions for topics choose what Java's choose, which Spark's Kafka source uses."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kbatch.java_patterns import java_pattern

pytestmark = pytest.mark.spark

PARTS = [
    *"aaabbA1_-.", *"abA1", ".", "^", "$", "|", "(", ")", "(", ")", "[", "]", "[", "]", "[^", "-", "&&", "{", "}",
    "{2}", "{1,2}", "{,2}", "{2,}", "*", "+", "?", "*+", "??", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?<n>",
    "(?P<n>", "(?i)", "(?i:", "(?x)", "(?-i:", r"\d", r"\w", r"\W", r"\s", r"\.", r"\-", r"\b", r"\A", r"\Z", r"\z",
    r"\G", r"\1", r"\k<n>", r"\Q", r"\E", r"\Qa.b\E", r"\x61", r"\u0041", r"\p{Alpha}", r"\h", r"\_",
    "#", " ", ",", "0", "=", "!", "<",
]  # fmt: skip
NAMES = [
    "a", "b", "ab", "aa", "aab", "abab", "A", "AB", "aB", "1", "a1", "1a", "_", "_a", "a_b", "a-b", "a.b", "a.bb", ".",
    "-", "--", "aaa", "bbb", "11", "a-1", "ba", "a--b", "A.b", "a0", "00",
]  # fmt: skip


def test_a_pattern_that_is_accepted_selects_what_java_s_selects(spark: Any) -> None:
    """For random patterns, many of which are invalid in Java, in Python or in both."""
    compile_java = spark._jvm.java.util.regex.Pattern.compile
    rng = random.Random(35)
    accepted = matching = 0
    for _ in range(20_000):
        text = "".join(rng.choices(PARTS, k=rng.randint(1, 7)))
        try:
            pattern = java_pattern(text.strip()) if text.strip() else None
        except ValueError:
            continue
        if pattern is None:
            continue
        accepted += 1
        found = [name for name in NAMES if pattern.fullmatch(name)]
        matching += bool(found)
        if accepted % 4 and not found:
            # Calls of Java take long.
            continue
        java = compile_java(text.strip())
        assert found == [name for name in NAMES if java.matcher(name).matches()], text
        if accepted >= 1500:
            break
    assert matching > 100
