"""Optional packages, and the only place that states how kbatch is installed."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from types import ModuleType
from urllib.parse import unquote, urlsplit

from kbatch.errors import MissingDependencyError

__all__ = [
    "DISTRIBUTION",
    "PUBLISHED",
    "extra_hint",
    "install_command",
    "package_command",
    "require",
    "requirement",
    "without_arrow",
]

DISTRIBUTION = "kafka-record-batch"
# Whether the package index has the distribution. Until then, kbatch is installed from a clone or from a wheel.
# `.ci/release announce` changes this line, and the pages with it.
PUBLISHED = False


def requirement(*extras: str) -> str:
    """Return what pip and uv install for kbatch with these extras."""
    names = f"[{','.join(extras)}]" if extras else ""
    return f"{DISTRIBUTION if PUBLISHED else _installed_from() or '.'}{names}"


def install_command(*extras: str, upgrade: bool = False) -> str:
    """Return the command that adds extras to this environment, and where to run it.

    As long as no package index has kbatch, it installs the packages of the extras, which needs no clone and no wheel.
    """
    installer, options = _installer(), ["-U"] if upgrade else []
    packages = [] if PUBLISHED else _packages_of(extras)
    if not packages or installer[:2] == ["uv", "tool"]:
        return _located([*installer, *options, requirement(*extras)])
    if installer[0] == "pipx":
        command = ["runpip", DISTRIBUTION, "install", *options] if upgrade else ["inject", DISTRIBUTION]
        return shlex.join(["pipx", *command, *packages])
    return shlex.join([*installer, *options, *packages])


def package_command(package: str) -> str:
    """Return the command that adds a package that is in no extra."""
    installer = _installer()
    if installer[0] == "pipx":
        return shlex.join(["pipx", "inject", DISTRIBUTION, package])
    if installer[:2] == ["uv", "tool"]:
        return _located([*installer, "--with", package, requirement()])
    return shlex.join([*installer, package])


def _located(command: list[str]) -> str:
    return shlex.join(command) + (" in a clone of kbatch" if command[-1].startswith(".") else "")


def _packages_of(extras: Sequence[str]) -> list[str]:
    """Return the requirements of extras, from the metadata of the installation; nothing if it has none."""
    try:
        found = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    parts = [line.partition(";") for line in found]
    names = [(package.strip(), re.search(r"extra == [\"']([\w-]+)", marker)) for package, _, marker in parts]
    return [package for package, extra in names if extra is not None and extra[1] in extras]


def _installed_from() -> str | None:
    """Return the clone or the wheel that kbatch was installed from (PEP 610), if it is still there."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = urlsplit(json.loads(text)["url"]) if text else None
    path = unquote(url.path) if url is not None and url.scheme == "file" else ""
    return path if os.path.exists(path) else None


def extra_hint(extra: str, upgrade: bool = False) -> str:
    """Return an extra and the command that installs it, for a message."""
    return f"the extra '{extra}': {install_command(extra, upgrade=upgrade)}"


def _installer() -> list[str]:
    """Return the installer of this environment, with its path or option if the command alone means another one."""
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return ["uv", "tool", "install"]
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return ["pipx", "install", "--force"]
    # `importlib.util.find_spec` also asks the finder of setuptools, which warns if PySpark 3.5 has imported distutils.
    if importlib.machinery.PathFinder.find_spec("pip") is None:
        active = os.environ.get("VIRTUAL_ENV")
        # uv also finds the environment .venv of the directory, which need not be this one.
        is_active = active is not None and os.path.realpath(active) == os.path.realpath(sys.prefix)
        return ["uv", "pip", "install", *([] if is_active else ["--python", sys.executable])]
    directory = os.path.dirname(sys.executable)
    found = shutil.which("pip")
    own = os.path.join(directory, "pip")
    if os.path.exists(own) and (found is None or not os.path.samefile(os.path.dirname(found), directory)):
        return [own, "install"]
    return ["pip", "install"]


def require(module: str, extra: str | None, feature: str, package: str = "") -> ModuleType:
    """Import a module of an optional package.

    Parameters
    ----------
    module : str
    extra : str or None
        The extra of kbatch that installs the package, if there is one.
    feature : str
        The feature that needs the package, for the message.
    package : str, optional
        The name of the package, if no extra installs it.

    Raises
    ------
    MissingDependencyError
        If the import fails.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        remedy = f"install {extra_hint(extra)}" if extra else f"install {package}: {package_command(package)}"
        raise _missing_error(error, module, feature, remedy) from error


def without_arrow(error: ModuleNotFoundError, feature: str) -> MissingDependencyError | None:
    """Return the error to raise for a module of kbatch that imports pyarrow itself, None for any other error."""
    if error.name is None or error.name.partition(".")[0] != "pyarrow":
        return None
    return _missing_error(error, "pyarrow", feature, f"install {extra_hint('arrow')}")


def _missing_error(error: ImportError, module: str, feature: str, remedy: str) -> MissingDependencyError:
    return MissingDependencyError(f"{feature} needs {module}, which can't be imported ({error}); {remedy}")
