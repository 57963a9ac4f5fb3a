"""The stub of `kbatch.protocol` has the fields of every message, for type checkers and editors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kbatch.protocol

STUB = Path(kbatch.protocol.__file__).with_suffix(".pyi")
ROOT = Path(__file__).parents[2]


def test_the_stub_is_that_of_the_schemas() -> None:
    """A build writes it, without the dependencies of kbatch and its kernels."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("needs the sources, from which kbatch is built")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import protocol_stub; print(protocol_stub.stub_text(), end='')"
    made = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, text=True, check=True
    ).stdout
    assert STUB.read_text() == made, "build kbatch, or run: python protocol_stub.py"


def test_the_stub_has_every_public_name() -> None:
    text = STUB.read_text()
    declared = ("class {}(", "def {}(", " as {}\n")
    assert [
        name
        for name in kbatch.protocol.__all__
        if not any(declaration.format(name) in text for declaration in declared)
    ] == []


def test_the_stub_types_the_response_of_every_api() -> None:
    text = STUB.read_text()
    for key in kbatch.protocol.supported_versions():
        overload = rf"api_key: Literal\[ApiKey\.{key.name}, {key.value}\], .*\n\) -> Response\[{key.title}Response\] \|"
        assert re.search(overload, text), key
