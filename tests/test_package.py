"""Rules for the complete package: few imports, stubs, and definitions that must agree."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import kbatch
from kbatch.errors import Fault, Finding, KbatchError, fault_status, finding_to_error

PACKAGE = Path(kbatch.__file__).parent
HEAVY = ("pyarrow", "pandas", "polars", "pyspark")


def test_importing_kbatch_imports_no_optional_package() -> None:
    code = f"import sys, kbatch; print(*(m for m in {HEAVY} if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_every_kernel_has_a_stub() -> None:
    kernels = {path.stem for path in (PACKAGE / "kernels").glob("*.pyx")}
    assert kernels == {path.stem for path in (PACKAGE / "kernels").glob("*.pyi")}
    assert kernels >= {"scan", "decode", "columns"}
    assert (PACKAGE / "py.typed").exists()


SETUP = PACKAGE.parent / "setup.py"


@pytest.mark.skipif(not SETUP.exists(), reason="not run in a checkout: setup.py is missing")
@pytest.mark.parametrize(
    ("compiler", "found"),
    [
        ("no-such-compiler", "no C compiler was found (no-such-compiler)"),
        ("gcc -nostdinc", "the compiler finds no headers ("),
    ],
)
def test_without_a_compiler_or_headers_the_build_says_what_to_install(
    tmp_path: Path, compiler: str, found: str
) -> None:
    for name in ("kernels", "protocol"):
        shutil.copytree(PACKAGE / name, tmp_path / "kbatch" / name, ignore=shutil.ignore_patterns("*.so", "*.c"))
    for name in ("setup.py", "protocol_stub.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(SETUP.parent / name, tmp_path)
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext"],
        cwd=tmp_path,
        env=os.environ | {"CC": compiler},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode != 0
    assert found in built.stderr
    assert "apt-get install gcc python3-dev" in built.stderr
    # Cython, which takes a minute, has not begun.
    assert not [*tmp_path.rglob("*.c")]


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_kernels_are_built_with_a_protected_stack_and_read_only_relocations() -> None:
    if os.environ.get("KBATCH_SANITIZE"):
        pytest.skip("sanitized kernels are built without hardening")
    protected = set()
    for kernel in (PACKAGE / "kernels").glob("*.so"):
        with kernel.open("rb") as file:
            elf = ELFFile(file)
            kinds = [segment["p_type"] for segment in elf.iter_segments()]
            flags = {tag.entry.d_tag: tag.entry.d_val for tag in elf.get_section_by_name(".dynamic").iter_tags()}
            names = {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
        assert "PT_GNU_RELRO" in kinds, kernel.name
        # All functions are bound when the module is loaded; DF_BIND_NOW is 8.
        assert flags.get("DT_FLAGS", 0) & 8, kernel.name
        protected |= {kernel.name.split(".")[0]} if "__stack_chk_fail" in names else set()
    assert {"decode", "pipeline", "message_codec"} <= protected


def test_faults_equal_the_faults_of_the_kernels() -> None:
    text = (PACKAGE / "kernels" / "wire.pxd").read_text()
    declared = {name: int(number) for name, number in re.findall(r"\bFAULT_(\w+) = (\d+)", text)}
    assert declared == {fault.name: fault.value for fault in Fault}


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault])
def test_every_fault_has_a_text_and_a_status(fault: Fault) -> None:
    error = finding_to_error(
        Finding(fault, at=7, record=3, expected=11, found=12, detail="detail"),
        source="x.log",
        position=5,
        base_offset=6,
    )
    assert str(error).startswith("x.log, byte 5, base offset 6, record 3, payload byte 7: ")
    assert "{" not in str(error)
    assert (error.source, error.position, error.base_offset, error.record) == ("x.log", 5, 6, 3)
    assert fault_status(fault) != kbatch.BatchStatus.OK


def test_errors_survive_pickling() -> None:
    import pickle

    error = finding_to_error(Finding(Fault.BAD_CRC, expected=1, found=2), source="x.log", position=5, base_offset=6)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kbatch.CrcMismatchError
    assert (str(copy), copy.source, copy.position, copy.base_offset) == (str(error), "x.log", 5, 6)


def test_every_public_name_exists_and_errors_are_kbatch_errors() -> None:
    for name in kbatch.__all__:
        assert hasattr(kbatch, name)
    for name in kbatch.__all__:
        value = getattr(kbatch, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, KbatchError)


@pytest.mark.parametrize("module", ["kbatch", "kbatch.log", "kbatch.values", "kbatch.spark"])
def test_every_public_name_is_documented(module: str) -> None:
    """Docstrings have an example, which the doctests run, and the parameters of a function. Errors are exempt."""
    if module == "kbatch.spark":
        pytest.importorskip("pyspark")
    public = importlib.import_module(module)
    for name in public.__all__:
        value = getattr(public, name)
        if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, Exception)):
            text = inspect.getdoc(value) or ""
            assert "\nExamples\n--------\n>>> " in text, f"{module}.{name} has no example"
            if inspect.isfunction(value):
                assert "\nParameters\n----------\n" in text, f"{module}.{name} does not document its parameters"


def test_import_from_a_zip_file_names_the_remedy(tmp_path: Path) -> None:
    """Python cannot load compiled modules from a zip file, such as the files of ``--py-files``."""
    package = Path(kbatch.__file__).parent
    with zipfile.ZipFile(tmp_path / "deps.zip", "w") as zipped:
        for path in package.rglob("*"):
            if path.suffix in (".py", ".so", ".pyd"):
                zipped.write(path, f"kbatch/{path.relative_to(package).as_posix()}")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'deps.zip')!r}); import kbatch.kernels.scan"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-Pc", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "loads no compiled module from a zip file" in done.stderr
    assert "`pip install --target`" in done.stderr


def test_the_metadata_has_urls_and_every_supported_python() -> None:
    found = importlib.metadata.metadata("kafka-record-batch")
    assert all(re.fullmatch(r"[\w ]+, https://\S+", url) for url in found.get_all("Project-URL") or [""])
    versions = re.findall(r"Python :: (3\.\d+)$", "\n".join(found.get_all("Classifier") or []), re.MULTILINE)
    assert versions == ["3.11", "3.12", "3.13", "3.14"]


def test_the_version_equals_that_of_the_distribution() -> None:
    assert importlib.metadata.version("kafka-record-batch") == kbatch.__version__


def test_dtypes_have_documented_sizes_and_names() -> None:
    """Users rely on the sizes and names of these fields."""
    assert kbatch.RECORD_DTYPE.itemsize == 56
    assert kbatch.RECORD_DTYPE.names == (
        "offset", "timestamp", "key_pos", "value_pos", "headers_pos", "key_len", "value_len", "header_count", "batch",
    )  # fmt: skip
    for dtype in (kbatch.RECORD_DTYPE, kbatch.BATCH_DTYPE, kbatch.HEADER_DTYPE):
        assert dtype.isalignedstruct
        assert dtype.fields is not None
        assert all(field[0].byteorder in "=|" for field in dtype.fields.values())
    assert kbatch.BATCH_DTYPE["crc"] == np.uint32
