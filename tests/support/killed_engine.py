"""Exports with an engine, and is killed at a moment: ``python killed_engine.py LOGS OUT ENGINE MOMENT ARGUMENTS``.

MOMENT is "before the commit", when all tasks have ended, or "in the commit", directly after its commit point. ARGUMENTS
are keywords of `kbatch.export`, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import kbatch
from kbatch import publishing
from kbatch.sinks import delta, iceberg
from kbatch.sinks.export_run import ExportRun


def kill(*arguments: Any, **options: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def killed_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> NoReturn:
        function(*arguments, **options)
        kill()

    return call


def main(logs: str, out: str, engine: Any, moment: str, arguments: dict[str, Any]) -> None:
    changed: Any
    if moment == "before the commit":
        ExportRun.commit = kill  # type: ignore[method-assign,assignment]
    else:
        changed = {"delta": delta.DeltaTable, "iceberg": iceberg.IcebergTable}.get(arguments["format"])
        if changed is None:
            # Its first call from the module itself is the one that makes the journal valid.
            publishing.rename_all = killed_after(publishing.rename_all)
        else:
            changed.commit = killed_after(changed.commit)
    kbatch.export(logs, out, engine=engine, **arguments)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:5], json.loads(sys.argv[5]))  # type: ignore[arg-type]
