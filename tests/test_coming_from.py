"""Pages for users of other tools: their tasks, the names and flags that they use, and what commands print.

`tests/broker/test_broker_coming_from.py` runs the code of the other tools.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest
from scripted_groups import GroupCluster
from test_readme import ROOT, Block, anchors, block_name, blocks, links, name_of
from trips import trip_partitions

import kbatch
from kbatch.cli import main
from kbatch.cli.running import make_parser

INDEX = ROOT / "docs" / "coming-from.md"
PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
FOREIGN = [block for page in PAGES for block in blocks(page) if block.language == "py"]
SHELL = [block for page in PAGES for block in blocks(page) if block.language in ("bash", "")]

# The flags of kcat 1.7 that pages use, with those that take a value (kcat -h).
KCAT = {"-b", "-C", "-G", "-J", "-L", "-Q", "-X", "-c", "-e", "-f", "-o", "-p", "-q", "-r", "-s", "-t"}
# Those of kafka-dump-log of Kafka 4.3 (kafka-dump-log --help).
KAFKA_DUMP_LOG = {
    "--cluster-metadata-decoder", "--deep-iteration", "--files", "--index-sanity-check", "--key-decoder-class",
    "--max-bytes", "--max-message-size", "--offsets-decoder", "--print-data-log", "--remote-log-metadata-decoder",
    "--share-group-state-decoder", "--skip-record-metadata", "--transaction-log-decoder", "--value-decoder-class",
    "--verify-index-only",
}  # fmt: skip


def tasks(page: Path) -> list[str]:
    return re.findall(r"^## (\d+\. .*)$", page.read_text(), re.MULTILINE)


def test_all_pages_have_the_tasks_of_the_index_in_their_order() -> None:
    rows = [row.split(" | ")[0] for row in re.findall(r"^\| (\d+\. .*) \|$", INDEX.read_text(), re.MULTILINE)]
    assert len(rows) == 10
    assert len(PAGES) == 6
    for page in PAGES:
        assert tasks(page) == rows, name_of(page)


def test_the_index_links_to_every_task_of_every_page() -> None:
    found = {link for link in links(INDEX) if "#" in link}
    expected = set()
    for page in PAGES:
        numbered = {anchor for anchor in anchors(page) if re.match(r"\d+-", anchor)}
        expected |= {f"coming-from/{page.name}#{anchor}" for anchor in numbered}
    assert len(expected) == 60
    assert expected <= found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_states_what_differs_and_what_kbatch_does_not_do(page: Path) -> None:
    assert {"what-differs", "what-kbatch-does-not-do"} <= anchors(page)


# -- Python


SETTINGS = ROOT / "docs" / "client-settings.md"


def settings_of(client: str) -> set[str]:
    """Return the names in the first column of a client's table of settings."""
    _, _, table = SETTINGS.read_text().partition(f"\n## {client}\n")
    cells = re.findall(r"^\| (.*?) \|", table.partition("\n## ")[0], re.MULTILINE)
    # A default is not a setting.
    return {
        name for cell in cells for name in re.findall(r"`([a-z_.]+)(?:=[^`]*)?`", re.sub("by default .*", "", cell))
    }


def test_settings_of_librdkafka_exist() -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    found = settings_of("confluent-kafka") - {"oauth_cb"}
    assert len(found) > 20
    for name in found:
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            confluent_kafka.Consumer({"group.id": "a", name: "1", "no.such.setting": "1"})
        # The value may be wrong for the setting.
        text = str(raised.value)
        assert "no.such.setting" in text or "No such configuration property" not in text, name


@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")
def test_settings_of_the_clients_in_python_exist() -> None:
    kafka = pytest.importorskip("kafka")
    aiokafka = pytest.importorskip("aiokafka")
    assert settings_of("kafka-python") <= set(kafka.KafkaConsumer.DEFAULT_CONFIG)
    parameters = set(inspect.signature(aiokafka.AIOKafkaConsumer.__init__).parameters)
    assert settings_of("aiokafka") - {"position", "end_offsets"} <= parameters


def test_settings_that_pages_call_the_same_are_settings_of_kbatch() -> None:
    rows = re.findall(r"^\| (`.*?) \| the same(?:, .*)? \|$", SETTINGS.read_text(), re.MULTILINE)
    found = {name.replace("_", ".") for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    assert len(found) > 20
    for name in found:
        with pytest.raises((ValueError, TypeError, kbatch.KbatchError)) as raised:
            kbatch.consume("trips", config={"bootstrap.servers": "localhost:1", "security.protocol": "x", name: "x"})
        assert "unknown setting" not in str(raised.value)


def text_of_registry_client() -> str:
    """Return the text of confluent-kafka's client of a schema registry, which cannot be imported without its extra."""
    package = Path(pytest.importorskip("confluent_kafka").__file__).parent
    return "".join(path.read_text() for path in (package / "schema_registry").rglob("*.py"))


# Importing kafka-python gives these warnings.
@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize("block", FOREIGN, ids=block_name)
def test_names_that_the_other_tool_s_code_imports_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            names = [alias.name for alias in node.names]
            if node.module.startswith("confluent_kafka.schema_registry"):
                text = text_of_registry_client()
                assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
            else:
                module = pytest.importorskip(node.module)
                assert [name for name in names if not hasattr(module, name)] == []
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert importlib.import_module(alias.name)


# -- commands


def commands(block: Block, program: str) -> list[list[str]]:
    """Return the arguments of a program's commands in a block, without pipes and redirections."""
    found = []
    for line in block.text.replace("\\\n", "").splitlines():
        words = shlex.split(line)
        if words[:1] == [program]:
            ends = [place for place, word in enumerate(words) if word in ("|", ">", "#")]
            found.append(words[1 : min(ends, default=len(words))])
    return found


def test_flags_of_kcat_and_kafka_dump_log_are_those_of_the_tools() -> None:
    kcat = [command for block in SHELL for command in commands(block, "kcat")]
    dump = [command for block in SHELL for command in commands(block, "kafka-dump-log")]
    assert len(kcat) >= 10
    assert len(dump) >= 5
    for command in kcat:
        flags = {each for each in command if re.fullmatch(r"-[A-Za-z]", each)}
        assert flags <= KCAT
    for command in dump:
        assert {each for each in command if each.startswith("--")} <= KAFKA_DUMP_LOG


def test_commands_of_kbatch_are_valid() -> None:
    found = [command for block in SHELL for command in commands(block, "kbatch")]
    assert len(found) >= 10
    for command in found:
        assert make_parser()[0].parse_args(command).command == command[0]


LIVE = [block for block in SHELL if block.language == "bash" and block.text.startswith("kbatch consume")]


@pytest.mark.parametrize("block", LIVE, ids=block_name)
def test_commands_on_a_cluster_print_what_the_page_states(
    block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = GroupCluster(trips=trip_partitions())
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", cluster.connect)
    (command,) = commands(block, "kbatch")
    assert main(command) == 0
    found = blocks(block.page)
    following = found[found.index(block) + 1]
    assert following.language == "text"
    assert capsys.readouterr().out == following.text
