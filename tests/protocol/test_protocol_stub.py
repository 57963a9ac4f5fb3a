"""The stub of `kbatch.protocol` has the fields of every message, for type checkers and editors."""

from __future__ import annotations

from protocol_stub import STUB, stub_text

import kbatch.protocol


def test_the_stub_has_the_messages_of_the_schemas() -> None:
    """``python tests/support/protocol_stub.py`` writes it."""
    assert STUB.read_text() == stub_text()


def test_the_stub_has_every_public_name() -> None:
    text = STUB.read_text()
    assert [
        name for name in kbatch.protocol.__all__ if f"class {name}(" not in text and f" as {name}\n" not in text
    ] == []
