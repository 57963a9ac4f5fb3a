"""Optional packages: importing them, and the message that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from kbatch.errors import MissingDependencyError

__all__ = ["require"]


def require(module: str, extra: str, wanted_by: str) -> ModuleType:
    """Import an optional package.

    Parameters
    ----------
    module : str
    extra : str
        The extra of kbatch that installs it.
    wanted_by : str
        What needs it, for the message.

    Raises
    ------
    MissingDependencyError
        If it can't be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{wanted_by} needs {module}, which can't be imported ({error}); pip install 'kbatch[{extra}]'"
        ) from error
