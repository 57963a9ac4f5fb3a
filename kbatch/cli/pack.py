"""``kbatch pack OUT.tar.gz``: what Spark's executors lack, from this environment, as an archive for ``spark.archives``.

Nothing is fetched: the files are those of the distributions that are installed here, so that the compiled kernels on
executors are the driver's.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import kbatch
from kbatch.cli.terminal import format_size
from kbatch.cli.usage import argument
from kbatch.errors import MissingDependencyError

__all__ = ["add_parser", "pack"]

_DESCRIPTION = """\
Write an archive with which kbatch runs on the executors of a Spark cluster that doesn't have it: the package with its
compiled kernels, what it needs, and pyarrow, all as they are installed here. Executors need the same operating system,
processor architecture and minor version of Python as this machine has, and nothing of kbatch's.

The settings that a Spark session needs are printed; they fit `kbatch export --conf`, spark_session(conf=...) and
spark-submit alike. `--py-files` can't do the same: Python loads no compiled module from a zip file.
"""

_SUFFIXES = {".tar.gz": "w:gz", ".tgz": "w:gz", ".tar": "w"}
# What Spark unpacks the archive as, below the working directory of each executor.
_DIRECTORY = "deps"
# Of our own package only what runs; it may be an editable installation, whose list of files names none of it.
_OURS = {".py", ".so", ".pyd"}
# Scripts, and bytecode that executors make themselves.
_LEFT_OUT = {"..", "__pycache__"}


def add_parser(commands: Any, *, epilog: str) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = commands.add_parser(
        "pack",
        help="kbatch and what it needs as an archive for Spark's executors",
        description=_DESCRIPTION,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "out",
        type=argument(_archive),
        metavar="OUT.tar.gz",
        help="file to write: .tar.gz, .tgz or .tar; replaced if it exists",
    )
    parser.add_argument(
        "--with",
        dest="more",
        action="append",
        default=[],
        metavar="DIST",
        help="another installed distribution, with what it needs, such as s3fs; may be given more than once",
    )
    parser.add_argument(
        "--without",
        dest="less",
        action="append",
        default=[],
        metavar="DIST",
        help="leave this out, since executors have it, such as pyarrow or numpy; may be given more than once",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    packed = pack(arguments.out, more=arguments.more, less=arguments.less)
    path = os.path.abspath(arguments.out)
    listed = ", ".join(f"{name} {version}" for name, version in packed.items())
    print(
        f"{arguments.out}: {format_size(os.path.getsize(path))} for {platform.system()} {platform.machine()}, "
        f"Python {sys.version_info.major}.{sys.version_info.minor}: {listed}\n\n"
        "Settings for Spark:\n"
        f"  spark.archives={path}#{_DIRECTORY}\n"
        f"  spark.executorEnv.PYTHONPATH=./{_DIRECTORY}"
    )
    return 0


def pack(out: str | os.PathLike[str], *, more: Iterable[str] = (), less: Iterable[str] = ()) -> dict[str, str]:
    """Write the archive.

    Parameters
    ----------
    out : str or path
        The file; its name ends in .tar.gz, .tgz or .tar.
    more : iterable of str
        Installed distributions that go in beside kbatch, what it needs, and pyarrow; each with what it needs itself.
    less : iterable of str
        Distributions that stay out.

    Returns
    -------
    dict of str to str
        Versions of the distributions that are in it, by name.

    Raises
    ------
    MissingDependencyError
        If a distribution isn't installed, or not in a way that its files could be copied.
    ValueError
        If the name of `out` has another ending.
    OSError
        If it can't be written; nothing is left then.
    """
    out = Path(out)
    mode = _mode(out)
    chosen = _closure(["pyarrow", *_requirements("kbatch"), *more], {_normal(name) for name in less})
    chosen.pop("kbatch", None)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        made = Path(scratch, out.name)
        # Compiled code compresses little better, and much more slowly, at higher levels.
        level = {"compresslevel": 3} if mode == "w:gz" else {}
        with tarfile.open(made, mode, **level) as archive:  # type: ignore[call-overload]
            for name, path in _all_files(chosen.values()):
                archive.add(path, name, recursive=False, filter=_plain)
        made.replace(out)
    return {"kbatch": kbatch.__version__, **{dist.metadata["Name"]: dist.version for dist in chosen.values()}}


def _archive(name: str) -> str:
    _mode(Path(name))
    return name


def _mode(out: Path) -> str:
    """Return how `tarfile` writes an archive of this name."""
    for suffix, mode in _SUFFIXES.items():
        if out.name.endswith(suffix):
            return mode
    raise ValueError(f"{out}: an archive that Spark unpacks is named .tar.gz, .tgz or .tar")


def _closure(names: Iterable[str], left_out: set[str]) -> dict[str, Distribution]:
    """Return distributions and all that they need, by normalised name."""
    found: dict[str, Distribution] = {}
    waiting = list(dict.fromkeys(names))
    while waiting:
        name = waiting.pop(0)
        if _normal(name) in found or _normal(name) in left_out:
            continue
        found[_normal(name)] = _installed(name)
        waiting += _requirements(name)
    return dict(sorted(found.items()))


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise MissingDependencyError(
            f"{name} is not installed for {sys.executable}, so that it can't be packed; install it, or leave it out "
            f"with --without {name} if executors have it"
        ) from None


def _requirements(name: str) -> list[str]:
    """Return the names of what a distribution needs, without that of its extras."""
    needed = []
    for line in _installed(name).requires or ():
        text, _, marker = line.partition(";")
        if re.search(r"\bextra\b", marker):
            continue
        required = re.match(r"\s*([\w.-]+)", text)
        assert required is not None
        # Markers are about this machine and this Python: what they ask for is installed, or isn't needed here.
        if not marker or _is_installed(required[1]):
            needed.append(required[1])
    return needed


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _all_files(distributions: Iterable[Distribution]) -> Iterator[tuple[str, Path]]:
    package = Path(kbatch.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in _OURS and "__pycache__" not in path.parts:
            yield f"kbatch/{path.relative_to(package).as_posix()}", path
    for dist in distributions:
        yield from _files(dist)


def _files(dist: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield name and place of what a distribution has below site-packages and runs."""
    files = dist.files
    if not files or any(file.name.startswith("__editable__") for file in files):
        raise MissingDependencyError(
            f"{dist.metadata['Name']} is installed in a way that doesn't say which files are its own (an editable "
            "installation?); install it from a wheel"
        )
    for file in files:
        path = Path(str(file.locate()))
        if _LEFT_OUT.isdisjoint(file.parts) and path.is_file():
            yield file.as_posix(), path


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who owned a file here."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
