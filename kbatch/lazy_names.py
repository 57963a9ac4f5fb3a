"""The public names of a package, whose modules are imported when one of their names is first used."""

import sys
from importlib import import_module

__all__ = ["LazyNames"]


class LazyNames:
    """The names of a package whose ``__getattr__`` is `find`.

    Parameters
    ----------
    package : str
    names : dict
        By the name of a module, the names that the package has of it.

    Attributes
    ----------
    names : list of str
        In alphabetical order.
    modules : dict
        By name, its module.
    """

    def __init__(self, package: str, names: dict[str, tuple[str, ...]]) -> None:
        self.modules = {name: module for module, found in names.items() for name in found}
        self.names = sorted(self.modules)
        self._package = package

    def find(self, name: str) -> object:
        """Return the value of a name that the package does not have yet, and keep it in the package."""
        if name not in self.modules:
            raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(self.modules[name]), name)
        except ModuleNotFoundError as error:
            from kbatch.extras import without_arrow

            missing = without_arrow(error, f"{self._package}.{name}")
            if missing is None:
                raise
            raise missing from error
        setattr(sys.modules[self._package], name, value)
        return value
