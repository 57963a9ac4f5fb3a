"""The page of dependencies agrees with pyproject.toml and with the packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from kbatch.batches import native

ROOT = Path(__file__).parent.parent
PYPROJECT = ROOT / "pyproject.toml"
PAGE = ROOT / "docs" / "dependencies.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not run in a checkout: there is no docs/dependencies.md")

# Classifiers and free text of packages that state no SPDX expression.
NAMES = {
    "BSD": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
    "Apache License 2.0": "Apache-2.0",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: GNU General Public License v2 (GPLv2)": "GPL-2.0",
}


def rows() -> dict[str, tuple[str, str]]:
    """Return who installs each package of the table, and its licence."""
    lines = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0].strip(): (cells[1].strip(), cells[2].strip()) for cells in lines if cells[0].strip() != "package"}


def name(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0]


def declared() -> dict[str, set[str]]:
    """Return for each package that users or a build install: the extras that do, "always" or "build"."""
    project = tomllib.loads(PYPROJECT.read_text())
    packages: dict[str, set[str]] = {}
    for requirement in project["project"]["dependencies"]:
        packages.setdefault(name(requirement), set()).add("always")
    for extra, requirements in project["project"]["optional-dependencies"].items():
        for requirement in requirements if extra not in ("test", "bench", "all") else ():
            packages.setdefault(name(requirement), set()).add(extra)
    for requirement in project["build-system"]["requires"]:
        packages.setdefault(name(requirement), set()).add("build")
    return packages


def test_the_table_lists_every_package_and_the_extras_that_install_it() -> None:
    listed = {package: set(re.findall(r"[\w-]+", by)) for package, (by, _) in rows().items()}
    assert listed == declared()


def test_no_extra_for_users_installs_a_tool_of_the_tests() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    users = {extra: requirements for extra, requirements in extras.items() if extra not in ("test", "bench")}
    included = re.findall(r"[\w-]+", users["all"][0].removeprefix("kafka-record-batch"))
    assert {*included} <= {*users} - {"all"}
    installed = {name(each) for extra, requirements in users.items() if extra != "all" for each in requirements}
    assert not installed & {
        "aiokafka",
        "confluent-kafka",
        "hypothesis",
        "kafka-python",
        "moto",
        "pytest",
        "kafka-record-batch",
    }


def test_the_classifiers_name_the_supported_versions_of_python() -> None:
    classifiers = tomllib.loads(PYPROJECT.read_text())["project"]["classifiers"]
    versions = [each.rpartition(" ")[2] for each in classifiers if re.search(r":: Python :: 3\.\d+$", each)]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]


def examined() -> list[str]:
    """Return the packages whose metadata are there; the extra of the tests has no package that pip has to compile."""
    packages = declared() if PAGE.exists() else {}
    return sorted(each for each in packages if each != "gssapi" or importlib.util.find_spec(each))


@pytest.mark.parametrize("package", examined())
def test_the_licence_in_the_table_is_the_licence_of_the_package(package: str) -> None:
    try:
        metadata = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    classifiers = [each for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    stated = [metadata.get("License-Expression"), *classifiers, (metadata.get("License") or "").strip()]
    licence = rows()[package][1].split(" with ")[0]
    # A package may list the licences of the code that it contains after its own.
    own = [NAMES.get(each, each).split(" AND ")[0] for each in stated if each]
    assert licence in own


def test_ranges_of_native_versions_start_with_the_lowest_accepted_version() -> None:
    requirements = tomllib.loads(PYPROJECT.read_text())["project"]
    accepted = [*requirements["dependencies"], *requirements["optional-dependencies"]["fast"]]
    lowest = {name(each): each.split(">=")[1] for each in accepted}
    ranges = dict(re.findall(r"^(lz4|zstandard|isal) +\S+ +>=([\d.]+),", native.__doc__ or "", re.MULTILINE))
    assert ranges == {package: lowest[package] for package in ("lz4", "zstandard", "isal")}
