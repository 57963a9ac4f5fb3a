"""``kbatch pack``: what is in the archive runs where nothing of kbatch is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from kbatch.cli import main
from kbatch.cli.pack import pack
from kbatch.errors import MissingDependencyError


def test_what_is_packed_runs_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Path) -> None:
    pytest.importorskip("pyarrow")
    archive = tmp_path / "deps.tgz"
    # pyarrow is large, and left out to be quick; decode needs none.
    assert main(["pack", str(archive), "--without", "pyarrow"]) == 0
    said = capsys.readouterr().out
    assert f"spark.archives={archive}#deps\n" in said
    assert "spark.executorEnv.PYTHONPATH=./deps\n" in said
    assert "pyarrow" not in said
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        packed.extractall(tmp_path / "deps", filter="data")
    assert len(names) == len(set(names))
    assert not [name for name in names if "__pycache__" in name or ".." in name or name.startswith(("/", "bin/"))]
    assert [name for name in names if name.startswith("kbatch/kernels/decode.")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deps", "deps.tgz"]

    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    code = (
        "import sys, kbatch, kbatch.kernels.decode as k; print(kbatch.__file__, k.__file__, "
        "len(kbatch.decode(open(sys.argv[1], 'rb').read())))"
    )
    log = golden / "logs" / "codec-zstd-0" / "00000000000000000000.log"
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-Pc", code, log],
        env={"PYTHONPATH": str(tmp_path / "deps")},
        capture_output=True,
        text=True,
        check=True,
    )
    package, kernel, records = done.stdout.split()
    assert package == str(tmp_path / "deps" / "kbatch" / "__init__.py")
    assert kernel.startswith(str(tmp_path / "deps" / "kbatch" / "kernels"))
    assert int(records) > 0


def test_a_zip_file_as_of_py_files_can_not_do_it(tmp_path: Path) -> None:
    """Python loads no compiled module from a zip file, wherever it comes from."""
    packed = pack(tmp_path / "deps.tar", less=["pyarrow"])
    assert set(packed) >= {"kbatch", "numpy", "cramjam", "crc32c", "lz4", "zstandard"}
    with tarfile.open(tmp_path / "deps.tar") as archive, zipfile.ZipFile(tmp_path / "deps.zip", "w") as zipped:
        for entry in archive:
            if entry.name.startswith("kbatch/"):
                file = archive.extractfile(entry)
                assert file is not None
                zipped.writestr(entry.name, file.read())
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'deps.zip')!r}); import kbatch.kernels.scan"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-Pc", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "loads none from a zip file, as of `--py-files`: `kbatch pack`" in done.stderr


def test_more_distributions_come_with_what_they_need(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    packed = pack(tmp_path / "deps.tar", more=["pandas"], less=["pyarrow", "PyArrow", "numpy"])
    assert {"pandas", "python-dateutil", "six"} <= set(packed)
    assert not {"pyarrow", "numpy"} & set(packed)


def test_what_can_not_be_packed_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"deps\.zip: an archive that Spark unpacks is named \.tar\.gz"):
        pack(tmp_path / "deps.zip")
    with pytest.raises(MissingDependencyError, match="no-such-thing is not installed"):
        pack(tmp_path / "deps.tar", more=["no-such-thing"])
    assert main(["pack", str(tmp_path / "nowhere" / "deps.tar"), "--without", "pyarrow"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
