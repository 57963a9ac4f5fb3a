"""README.md and docs/: their code runs as it is printed, their links lead somewhere, and CI finds its commands."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import public_api
import pytest
from scripted_broker import ScriptedPartition
from scripted_groups import GroupCluster
from scripted_registry import ScriptedRegistry, framed
from trips import trip_partitions

import kbatch
from kbatch.cli import main
from kbatch.cli.running import make_parser
from kbatch.sinks import metrics
from kbatch.values.schema_registry import SchemaRegistry

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
# tests/test_tutorial.py runs its blocks, in the order of the page.
TUTORIAL = ROOT / "docs" / "tutorial.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
CODE = [README, *DOCS]
PAGES = [*CODE, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md"]
# Files that a run of the benchmarks creates.
MADE = "bench/corpora"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page, and the number of the line after its fence."""

    page: Path
    line: int
    language: str
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(page, text.count("\n", 0, at.start(2)) + 1, at[1], at[2]) for at in BLOCK.finditer(text)]


def snippets(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def block_name(block: Block) -> str:
    return f"{name_of(block.page)}:{block.line}"


def needs_spark(block: Block) -> bool:
    return "spark" in block.text or block.page.name.startswith("spark")


def orders_cluster(has_payments: bool, has_trips: bool, has_history: bool) -> GroupCluster:
    """Return the cluster on localhost:9092 of the pages; for a history, with a topic of the golden logs."""
    partitions = [ScriptedPartition(), ScriptedPartition()]
    for number, values in enumerate([(9.5, 4.5, 6.0), (3.0, 4.0)]):
        first = 1 + 3 * number
        texts = [b'{"id": %d, "total": %.1f}' % (first + i, total) for i, total in enumerate(values)]
        partitions[number].write(texts, timestamps=1000)
    topics = {"orders": partitions}
    if has_payments:
        topics["payments"] = [ScriptedPartition()]
        topics["payments"][0].write(
            [framed(1, b"\x02"), framed(2, b"\x04\x06USD"), framed(1, b"\x06")], timestamps=1000
        )
    if has_trips:
        topics["trips"] = trip_partitions()
    if has_history:
        data = b"".join(path.read_bytes() for path in sorted((ROOT / "tests/golden/logs/codec-none-0").glob("*.log")))
        spans = [(int(row["position"]), int(row["position"] + row["size"])) for row in kbatch.scan(data)]
        topics["codec_none"] = [ScriptedPartition([data[start:end] for start, end in spans])]
    cluster = GroupCluster(**topics)
    # Every password and every token is right.
    cluster.password = b""
    return cluster


def payments_registry() -> ScriptedRegistry:
    """Return the schema registry on localhost:8081 of the pages."""
    registry = ScriptedRegistry()
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    for more in ([], [{"name": "currency", "type": "string", "default": "EUR"}]):
        fields = [*fields, *more]
        registry.register("payments-value", {"type": "record", "name": "payment", "fields": fields})
    return registry


def answered(registry: ScriptedRegistry, url: str) -> tuple[int, str, bytes]:
    status, body = registry.answer(url.removeprefix("http://localhost:8081"))
    return status, "", json.dumps(body).encode()


def run(found: list[Block], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the Python blocks; a `text` block that follows one of them is what it prints."""
    monkeypatch.chdir(ROOT)
    names = ("payments", "trips", "history=")
    cluster = orders_cluster(*(any(name in block.text for block in found) for name in names))
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", cluster.connect)
    registry = payments_registry()
    monkeypatch.setattr(SchemaRegistry, "_response", lambda self, url: answered(registry, url))
    names: dict[str, Any] = {}
    for block, following in itertools.zip_longest(found, found[1:]):
        if block.language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # With blank lines before the code, the line number of an error is the line of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)
        if following is not None and following.language == "text":
            assert printed.getvalue() == following.text, f"{block_name(block)} prints something else"
        print(printed.getvalue(), end="")
    return names


# -- code


@pytest.mark.parametrize("mark", ["main command", "local command", "test command"])
def test_commands_for_ci_are_single_lines(mark: str) -> None:
    command = re.findall(rf"^<!-- {mark} -->\n```\n(.*)\n```$", README.read_text(), re.MULTILINE)
    assert len(command) == 1
    assert command[0].startswith("python3 -m venv .venv && .venv/bin/pip install")


def test_the_five_lines_of_the_readme_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(snippets(README)) == 1
    assert len([line for line in snippets(README)[0].text.splitlines() if line]) == 5
    names = run(blocks(README), monkeypatch)
    assert names["totals"].num_rows == 2


# Importing kafka-python gives these warnings.
@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize("page", [page for page in DOCS if snippets(page) and page != TUTORIAL], ids=name_of)
def test_snippets_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run([block for block in blocks(page) if not needs_spark(block)], monkeypatch)


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in CODE if any(map(needs_spark, snippets(page)))], ids=name_of)
def test_snippets_on_spark_run(
    page: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(blocks(page), monkeypatch)
    assert capsys.readouterr().out


def test_snippets_are_found() -> None:
    assert {name_of(page) for page in CODE if snippets(page)} >= {"README.md", "docs/reading.md", "docs/writing.md"}
    with_spark = {name_of(page) for page in CODE if any(map(needs_spark, snippets(page)))}
    assert with_spark >= {"docs/coming-from/spark-kafka-source.md", "docs/spark.md"}


@pytest.mark.parametrize("block", [block for page in CODE for block in snippets(page)], ids=block_name)
def test_snippets_import_only_public_modules(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            assert not str(node.module).startswith("kbatch") or node.module in public_api.MODULES
        elif isinstance(node, ast.Import):
            assert all(not name.name.startswith("kbatch") or name.name in public_api.MODULES for name in node.names)


SHELL_BLOCKS = [block for page in CODE if page != TUTORIAL for block in blocks(page) if block.language == "sh"]


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=block_name)
def test_shell_blocks_run(block: Block, tmp_path: Path) -> None:
    """The blocks run as in a fresh clone, which has no output, with `kbatch` as the command of this interpreter."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "kbatch"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kbatch "$@"\n')
    command.chmod(0o755)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(
        ["sh", "-euc", block.text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def kbatch_commands(page: Path) -> list[list[str]]:
    """Return the arguments of the `kbatch` commands in blocks that are not run."""
    found = []
    for block in blocks(page):
        for line in block.text.replace("\\\n", "").splitlines():
            command = re.search(r"(?:^|/|[A-Z]=\S+ )kbatch ([a-z]+ [^|]+)", line)
            if block.language == "" and command:
                found.append(shlex.split(command[1]))
    return found


def test_documented_commands_have_existing_flags(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [command for page in PAGES for command in kbatch_commands(page)]
    assert len(commands) > 5
    for name, *arguments in commands:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        assert {each for each in arguments if each.startswith("--")} <= known


NIGHTLY = ROOT / "docs" / "how-to" / "nightly-export.md"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_units_of_the_nightly_export_are_valid(tmp_path: Path) -> None:
    names = re.findall(r"^`/etc/systemd/system/(\S+)`:$", NIGHTLY.read_text(), re.MULTILINE)
    units = [block.text for block in blocks(NIGHTLY) if block.language == "ini"]
    assert names == ["kbatch-export.service", "kbatch-export.timer"]
    alert = "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    for name, text in zip([*names, "kbatch-alert.service"], [*units, alert], strict=True):
        (tmp_path / name).write_text(text.replace("/opt/kbatch/bin/kbatch", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in names)],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, [line for line in done.stderr.splitlines() if "kbatch" in line]) == (0, [])


def test_the_commands_and_metrics_of_the_nightly_export_exist() -> None:
    """The command of cron and of the unit has valid flags, and a metric or status of the page is one of an export."""
    text = NIGHTLY.read_text().replace("\\\n", "")
    commands = re.findall(r"/opt/kbatch/bin/kbatch (export /var.*)", text)
    assert len(commands) == 2
    for command in commands:
        arguments = make_parser()[0].parse_args(shlex.split(command))
        assert (arguments.engine, arguments.out, arguments.by_day) == ("local", "/srv/lake/raw", True)
    known = {f"kbatch_export_{name}" for name in (*metrics._OF_RUN, *metrics._OF_TOPIC)}
    assert {"kbatch_export_success"} < set(re.findall(r"kbatch_export_\w+", text)) <= known
    statuses = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert statuses == {0, 1, 2, 3, 4, 5, 130}


# -- links and sizes


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "`code`", BLOCK.sub("", page.read_text()))
    return re.findall(r"\]\(([^)\s]+)\)", text)


SECTIONS = ("tutorial", "how-to", "guide", "reference", "explanation", "compatibility", "coming-from", "benchmarks")


def test_the_readme_links_to_each_section() -> None:
    assert {f"docs/{section}.md" for section in SECTIONS} <= set(links(README))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_targets(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT.resolve()), f"{link} leaves the repository"
        assert target.exists(), f"{link} leads to nothing"
        assert not anchor or anchor in anchors(target), f"{link}: {path or 'the page'} has no such heading"


def test_a_wrong_output_on_a_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"page\.md:2 prints something else"):
        run(blocks(page), monkeypatch)


def test_the_readme_and_its_pages_link_to_every_page() -> None:
    """The site has its own navigation, and its index page is not for readers of the repository."""
    reached, new = set(), {README}
    while new:
        reached |= new
        targets = {(page.parent / link.partition("#")[0]).resolve() for page in new for link in links(page)}
        new = {each for each in targets if each in DOCS} - reached
    sections = {ROOT / "docs" / f"{name}.md" for name in ("index", "guide", "reference", "explanation")}
    assert set(DOCS) <= reached | sections
    assert {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} <= set(links(README))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_paths_exist(page: Path) -> None:
    """Named paths of tests and tools exist; `docs/architecture.md` has the paths of `kbatch/`."""
    named = set(re.findall(r"(?<![\w/.-])((?:tests|docs|bench|\.ci)/[\w./-]*\w)", page.read_text()))
    assert not [path for path in sorted(named) if not path.startswith(MADE) and not (ROOT / path).exists()]


# The changelog grows with each release.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_pages_are_short(page: Path) -> None:
    assert page.read_text().count("\n") <= (110 if page == README else 400)


def test_the_architecture_names_modules_that_exist() -> None:
    named = set(re.findall(r"`(\w+/[\w/]+\.\w+)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert named
    assert not [path for path in sorted(named) if not (ROOT / "kbatch" / path).exists()]


def test_the_documented_layout_equals_the_package() -> None:
    rows = re.findall(r"^\| `(\w+(?:\.py|/))` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    modules = [path for path in (ROOT / "kbatch").iterdir() if not path.name.startswith("_")]
    found = {f"{path.name}/" for path in modules if path.is_dir()} | {p.name for p in modules if p.suffix == ".py"}
    assert set(rows) == found
