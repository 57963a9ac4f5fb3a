"""`.ci/release`: what a release must consist of, and what it refuses to publish."""

from __future__ import annotations

import importlib.util
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / ".ci" / "release"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="not run in a checkout: there is no .ci/release")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
STEM = f"kafka_record_batch-{VERSION}"
TAGS = (
    "manylinux2014_x86_64.manylinux_2_17_x86_64", "manylinux_2_28_aarch64", "musllinux_1_2_x86_64",
    "musllinux_1_2_aarch64", "macosx_11_0_x86_64", "macosx_11_0_arm64",
)  # fmt: skip


@pytest.fixture(scope="module")
def release() -> ModuleType:
    loader = SourceFileLoader("release", str(SCRIPT))
    spec = importlib.util.spec_from_loader("release", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """All files of a release, with empty modules."""
    with tarfile.open(tmp_path / f"{STEM}.tar.gz", "w:gz") as archive:
        for name in (
            "LICENSE",
            "README.md",
            "CHANGELOG.md",
            "setup.py",
            "kbatch/kernels/scan.pyx",
            "tests/conftest.py",
        ):
            archive.add(__file__, f"{STEM}/{name}")
    for python in ("cp311", "cp312", "cp313", "cp314"):
        for tag in TAGS:
            write_wheel(tmp_path / f"{STEM}-{python}-{python}-{tag}.whl")
    return tmp_path


def write_wheel(path: Path, library: bytes = b"", without: str = "", also: str = "") -> None:
    modules = [str(each.relative_to(ROOT)) for each in (ROOT / "kbatch").rglob("*.py")]
    kernels = [each.stem for each in (ROOT / "kbatch" / "kernels").glob("*.pyx")] + ["_cython"]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{STEM}.dist-info/METADATA", "")
        # As setuptools lists it.
        archive.writestr(f"{STEM}.data/data/", "")
        data = [f"{STEM}.data/data/share/man/man1/kbatch.1", *([also] if also else [])]
        for name in [
            *data,
            *modules,
            *(f"kbatch/kernels/{kernel}.cpython-311-x86_64-linux-gnu.so" for kernel in kernels),
        ]:
            if name != without:
                archive.writestr(name, library if name.endswith(".so") else b"")


def test_a_complete_release_has_no_problems(release: ModuleType, dist: Path) -> None:
    assert [*release.problems(dist)] == []
    assert release.missing(dist) == []


def test_a_missing_wheel_is_named_by_its_python_and_platform(release: ModuleType, dist: Path) -> None:
    (dist / f"{STEM}-cp312-cp312-musllinux_1_2_aarch64.whl").unlink()
    assert release.missing(dist) == ["Python 3.12, Linux with musl on arm64"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("kafka_record_batch-9.0-cp311-cp311-manylinux_2_28_x86_64.whl", f"the version of pyproject.toml is {VERSION}"),
        (f"{STEM}-cp311-cp311-linux_x86_64.whl", "the package index would refuse this platform"),
        (f"{STEM}-cp39-cp39-manylinux_2_28_x86_64.whl", "the Python is not supported"),
        (f"{STEM}-cp311-cp311-manylinux_2_36_x86_64.whl", r"needs glibc 2\.36, newer than 2\.28"),
    ],
)
def test_a_wheel_with_a_wrong_name_is_refused(release: ModuleType, dist: Path, name: str, problem: str) -> None:
    write_wheel(dist / name)
    with pytest.raises(release.ReleaseError, match=problem):
        release.report([*release.problems(dist)])


def test_a_wheel_without_a_module_is_refused(release: ModuleType, dist: Path) -> None:
    write_wheel(dist / f"{STEM}-cp311-cp311-manylinux_2_28_aarch64.whl", without="kbatch/table.py")
    assert [*release.problems(dist)] == [f"{STEM}-cp311-cp311-manylinux_2_28_aarch64.whl: kbatch/table is missing"]


@pytest.mark.parametrize("name", [f"{STEM}.data/data/etc/other", "tests/conftest.py"])
def test_a_wheel_has_the_package_and_the_manual_page_alone(release: ModuleType, dist: Path, name: str) -> None:
    wheel = dist / f"{STEM}-cp311-cp311-manylinux_2_28_aarch64.whl"
    write_wheel(wheel, without=f"{STEM}.data/data/share/man/man1/kbatch.1")
    assert [*release.problems(dist)] == [f"{wheel.name}: {STEM}.data/data/share/man/man1/kbatch.1 is missing"]
    write_wheel(wheel, also=name)
    assert [*release.problems(dist)] == [f"{wheel.name}: contains {name.partition('/')[0]}"]


def test_a_kernel_with_a_run_path_is_refused(release: ModuleType, dist: Path) -> None:
    write_wheel(dist / f"{STEM}-cp311-cp311-manylinux_2_28_aarch64.whl", b"\0/home/me/python/lib\0")
    (problem,) = release.problems(dist)
    assert "looks for libraries in a directory of the machine on which it was built" in problem


def test_two_source_distributions_are_refused(release: ModuleType, dist: Path) -> None:
    (dist / "kafka_record_batch-0.0.tar.gz").touch()
    with pytest.raises(release.ReleaseError, match="must contain one source distribution, found 2"):
        [*release.problems(dist)]


@pytest.fixture
def clone(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit that is ready for its tag."""
    place = tmp_path / "clone"
    (place / "kbatch").mkdir(parents=True)
    (place / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (place / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2027-01-31)\n")
    (place / "kbatch" / "extras.py").write_text("PUBLISHED = True\n")
    monkeypatch.setattr(release, "ROOT", place)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "1.2.3"]):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *command], cwd=place, check=True)
    return place


def tag(clone: Path, name: str) -> None:
    subprocess.run(["git", "tag", name], cwd=clone, check=True)


def test_a_tagged_commit_of_a_clean_tree_is_ready(release: ModuleType, clone: Path) -> None:
    tag(clone, "v1.2.3")
    assert [*release.release_problems()] == []


def test_a_source_distribution_without_a_file_of_the_commit_is_refused(release: ModuleType, clone: Path) -> None:
    def pack(*names: str) -> None:
        with tarfile.open(clone / "dist.tar.gz", "w:gz") as archive:
            for name in names:
                archive.add(clone / name, f"{STEM}/{name}")

    pack("pyproject.toml", "CHANGELOG.md", "kbatch/extras.py")
    assert [*release.left_out(clone)] == []
    pack("pyproject.toml", "CHANGELOG.md")
    assert [*release.left_out(clone)] == ["dist.tar.gz: kbatch/extras.py is missing"]


def test_a_commit_with_the_tag_of_another_version_is_refused(release: ModuleType, clone: Path) -> None:
    tag(clone, "v1.2.2")
    assert [*release.release_problems()] == ["the commit has no tag v1.2.3"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("CHANGELOG.md", "## 1.2.3 (unreleased)\n", r"CHANGELOG\.md has no heading '## 1\.2\.3 \(YYYY-MM-DD\)'"),
        ("CHANGELOG.md", "## 1.2.2 (2026-01-31)\n", r"CHANGELOG\.md has no heading"),
        ("kbatch/extras.py", "PUBLISHED = False\n", r"run `\.ci/release announce`"),
        ("other", "", "the working tree has changes that are not committed"),
    ],
)
def test_an_unfinished_commit_is_refused(release: ModuleType, clone: Path, name: str, text: str, problem: str) -> None:
    tag(clone, "v1.2.3")
    (clone / name).write_text(text)
    with pytest.raises(release.ReleaseError, match=problem):
        release.report([*release.release_problems()])


def test_the_workflow_runs_the_steps_of_the_script() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    steps = [line.split(".ci/release ")[1] for line in workflow.splitlines() if "- run: .ci/release" in line]
    assert steps == ["sdist", "wheels", "try", "ready"]
    assert workflow.count("- run:") == len(steps)
