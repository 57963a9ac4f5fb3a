"""The module under which users import a class or a function."""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["public_in"]

T = TypeVar("T")


def public_in(module: str) -> Callable[[T], T]:
    """Return a decorator for a class or a function that users import from `module`, not from where its code is.

    Help, representations, tracebacks and pickles name this module.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.log.LogWriter, kbatch.export.__module__
    (<class 'kbatch.log.LogWriter'>, 'kbatch')
    """

    def published(value: T) -> T:
        value.__module__ = module
        return value

    return published
