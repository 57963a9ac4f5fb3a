"""``import kbatch`` is fast: a module is imported when one of its names is first used."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kbatch


def output_of(code: str, *arguments: str) -> str:
    """Return what a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_importing_kbatch_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import kbatch; print(*sorted(set(sys.modules) - before))"
    assert {name.partition(".")[0] for name in output_of(code).split()} <= {"importlib", "kbatch", "warnings"}


def test_importing_kbatch_takes_a_fraction_of_importing_numpy() -> None:
    code = """
import time
began = time.perf_counter()
import numpy
middle = time.perf_counter()
import kbatch
print(middle - began, time.perf_counter() - middle)
"""
    times = [tuple(map(float, output_of(code).split())) for _ in range(3)]
    numpy_time, kbatch_time = (min(each) for each in zip(*times, strict=True))
    assert kbatch_time < 0.1
    assert kbatch_time < numpy_time / 2


def test_a_log_is_read_without_the_modules_that_write_or_compare_logs() -> None:
    code = "import sys, kbatch; [*kbatch.Log(sys.argv[1]).tables()]; print(*sys.modules)"
    others = ("kbatch.protocol", "kbatch.write", "kbatch.rewrite", "kbatch.log.write", "kbatch.log.check")
    log = Path(__file__).parent / "golden" / "logs" / "codec-lz4-0"
    assert set(output_of(code, str(log)).split()).isdisjoint(others)


def test_using_kbatch_imports_no_optional_package() -> None:
    packages = ("crc32c", "duckdb", "pandas", "polars", "pyarrow", "pyspark")
    code = f"import sys, kbatch; kbatch.decode(b''); kbatch.Log; print(*{{*{packages}}} & {{*sys.modules}})"
    assert output_of(code).split() == []


def test_star_import_binds_the_public_names() -> None:
    code = "before = set(globals()); from kbatch import *; print(*set(globals()) - before)"
    assert set(output_of(code).split()) - {"before"} == {*kbatch.__all__}


@pytest.mark.parametrize("package", [kbatch, kbatch.log])
def test_the_stub_declares_the_public_names_from_the_same_modules(package: Any) -> None:
    body = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text()).body
    stub = {(each.module, name.name) for each in body if isinstance(each, ast.ImportFrom) for name in each.names}
    packages = {("kbatch", name) for name in getattr(package, "_PACKAGES", ())}
    assert stub == packages | {(module, name) for name, module in package._NAMES.modules.items()}


def test_public_packages_need_no_import_of_their_own() -> None:
    assert output_of("import kbatch; print(kbatch.log.Log is kbatch.Log)") == "True\n"
    for package in ("live", "protocol", "values"):
        assert output_of(f"import kbatch; print(kbatch.{package}.__name__)") == f"kbatch.{package}\n"


def test_dir_is_the_same_before_and_after_use() -> None:
    listed = output_of(
        "import kbatch; print(*dir(kbatch)); kbatch.decode; kbatch.log; print(*dir(kbatch))"
    ).splitlines()
    assert listed[0] == listed[1]
    assert listed[0].split() == sorted([*kbatch.__all__, "live", "log", "protocol", "values"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kbatch' has no attribute 'nothing'"):
        _ = kbatch.nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from kbatch import nothing")


def test_public_names_can_be_pickled_before_their_first_use() -> None:
    pickled = pickle.dumps([kbatch.Codec.ZSTD, kbatch.decode, kbatch.Limits()])
    assert output_of(f"import pickle; print(pickle.loads({pickled!r})[0])") == "4\n"
