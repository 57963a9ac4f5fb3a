"""``kbatch completion``: the scripts complete what the parser accepts."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kbatch.cli import main
from kbatch.cli.running import make_parser


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """The script of each shell, in a directory with two logs."""
    paths = {}
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        paths[shell] = tmp_path / f"script.{shell}"
        paths[shell].write_text(capsys.readouterr().out)
    (tmp_path / "logs").mkdir()
    for name in ("orders-0", "two words-0"):
        (tmp_path / "logs" / name).mkdir()
    return paths


def completed(script: Path, *words: str) -> set[str]:
    """Return what bash completes the last word to."""
    code = f"""
source {shlex.quote(str(script))}
COMP_WORDS=({shlex.join(words)})
COMP_CWORD={len(words) - 1}
$(complete -p kbatch | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, check=True, cwd=script.parent, timeout=60
    )
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
class TestBash:
    def test_commands_and_options_of_kbatch(self, scripts: dict[str, Path]) -> None:
        commands = set(make_parser()[1])
        assert completed(scripts["bash"], "kbatch", "") == commands
        assert completed(scripts["bash"], "kbatch", "comp") == {"compact", "completion"}
        assert completed(scripts["bash"], "kbatch", "-") == {"-h", "--help", "--version"}

    def test_options_are_those_of_the_command(self, scripts: dict[str, Path]) -> None:
        for name, parser in make_parser()[1].items():
            flags = {flag for each in parser._actions if each.help != "==SUPPRESS==" for flag in each.option_strings}
            assert completed(scripts["bash"], "kbatch", name, "-") == flags
        assert completed(scripts["bash"], "kbatch", "dump", "--rec") == {"--records"}

    def test_values_of_an_option(self, scripts: dict[str, Path]) -> None:
        script = scripts["bash"]
        assert completed(script, "kbatch", "dump", "--format", "") == {"json", "kafka"}
        assert completed(script, "kbatch", "export", "logs", "--isolation", "read_c") == {"read_committed"}
        assert completed(script, "kbatch", "convert", "--magic", "") == {"0", "1", "2"}
        assert completed(script, "kbatch", "dump", "--producer", "") == set()

    def test_names_of_files(self, scripts: dict[str, Path]) -> None:
        script = scripts["bash"]
        assert completed(script, "kbatch", "stats", "lo") == {"logs"}
        assert completed(script, "kbatch", "dump", "--records", "logs/") == {"logs/orders-0", "logs/two words-0"}
        assert completed(script, "kbatch", "export", "--value-reader-schema", "logs/o") == {"logs/orders-0"}

    def test_arguments_of_help_and_completion(self, scripts: dict[str, Path]) -> None:
        assert completed(scripts["bash"], "kbatch", "help", "ver") == {"verify"}
        assert completed(scripts["bash"], "kbatch", "completion", "") == {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_the_script(shell: str, scripts: dict[str, Path]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-n", str(scripts[shell])], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_has_every_command_option_and_choice(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text()
    for name, parser in make_parser()[1].items():
        if shell == "zsh":
            body = text.split(f"\n_shtab_kbatch_{name}_options=(\n")[1].split("\n)\n")[0]
        else:
            body = "\n".join(line for line in text.splitlines() if f"-n '_shtab_kbatch_using {name}" in line)
        for action in parser._actions:
            if action.help == "==SUPPRESS==":
                continue
            for flag in action.option_strings:
                assert (flag if shell == "zsh" else f"-l {flag[2:]}" if flag[:2] == "--" else f"-s {flag[1]}") in body
            assert " ".join(map(str, action.choices or ())) in body


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("kbatch comp", ["compact", "completion"]),
        ("kbatch dump --rec", ["--records"]),
        ("kbatch dump --format=k", ["--format=kafka"]),
        ("kbatch export logs --isolation read_c", ["read_committed"]),
        ("kbatch dump --producer ", []),
        ("kbatch dump --records logs/", ["logs/orders-0/", "logs/two words-0/"]),
        ("kbatch help ver", ["verify"]),
    ],
)
def test_fish_completes(line: str, found: list[str], scripts: dict[str, Path]) -> None:
    code = f"source {shlex.quote(str(scripts['fish']))}; complete -C {shlex.quote(line)}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True, cwd=scripts["fish"].parent
    )
    assert [each.split("\t")[0] for each in done.stdout.splitlines()] == found


def test_an_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "bsh"])
    assert "invalid choice: 'bsh', did you mean 'bash'? (choose from 'bash', 'zsh', 'fish')" in capsys.readouterr().err
