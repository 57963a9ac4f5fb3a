"""Optional packages: importing them, and the message that names the extra of kbatch that installs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from kbatch.errors import MissingDependencyError

__all__ = ["install_command", "require"]


def install_command(extra: str) -> str:
    """Return the command that installs an extra, and where to run it: no package index has kbatch."""
    return f"pip install '.[{extra}]' in a clone of kbatch"


def require(module: str, extra: str, feature: str) -> ModuleType:
    """Import a module of an optional package.

    Parameters
    ----------
    module : str
    extra : str
        The extra of kbatch that installs the package.
    feature : str
        The feature that needs the package, for the message.

    Raises
    ------
    MissingDependencyError
        If the import fails.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{feature} needs {module}, which can't be imported ({error}); {install_command(extra)}"
        ) from error
