"""An error about damage has a note with the way out: what skips it, and what copies the rest."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import kbatch
from kbatch.cli import main


@pytest.fixture
def damaged(golden: Path, tmp_path: Path) -> Path:
    """A log whose first batch has a wrong checksum."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    data = bytearray(next((golden / "logs" / "codec-none-0").glob("*.log")).read_bytes())
    data[100] ^= 1
    (directory / f"{0:020d}.log").write_bytes(data)
    return directory


def test_an_error_about_damage_names_skip_and_recompress_in_a_note_that_survives_pickling(damaged: Path) -> None:
    with pytest.raises(kbatch.CrcMismatchError) as caught:
        list(kbatch.Log(damaged))
    for error in caught.value, pickle.loads(pickle.dumps(caught.value)):
        (note,) = error.__notes__
        assert "on_error='skip'" in note
        assert "recompress_log" in note
        assert note not in str(error)


@pytest.mark.parametrize("cut", [30, 70])
def test_an_incomplete_batch_in_a_closed_segment_has_the_note_too(damaged: Path, cut: int) -> None:
    segment = damaged / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:cut])
    (damaged / f"{5000:020d}.log").write_bytes(b"")
    with pytest.raises(kbatch.TruncatedBatchError) as caught:
        list(kbatch.Log(damaged))
    assert len(caught.value.__notes__) == 1


def test_other_errors_have_no_note() -> None:
    with pytest.raises(kbatch.LimitExceededError) as caught:
        kbatch.decode(kbatch.encode([b"v" * 100], codec="gzip"), limits=kbatch.Limits(max_decompressed_bytes=10))
    assert not hasattr(caught.value, "__notes__")


def test_commands_that_can_skip_damage_name_the_flag_at_the_end_of_the_error(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["recompress", str(damaged), str(tmp_path / "out-0"), "--codec", "lz4"]
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("--on-error skip continues after it and lists what is lost (docs/how-to/salvage.md)")
    assert main([*command, "--on-error", "skip"]) == 3
    assert "--on-error" not in capsys.readouterr().err


def test_commands_that_cannot_skip_damage_name_the_command_that_can(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", str(damaged), str(tmp_path / "out-0"), "--include-active"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "`kbatch convert --on-error skip` writes a copy of the intact batches (docs/how-to/salvage.md)"
    )
