"""Runs the blocks of a page in a Spark session that has the Kafka source, and prints what each of them prints."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from kbatch.spark import spark_session


def main(order: str, jars: str) -> None:
    """Run the blocks of a JSON file, in one namespace for each language."""
    names: dict[str, dict[str, Any]] = {"py": {}, "python": {}}
    outputs = []
    with spark_session("local[2]", conf={"spark.jars": jars}):
        for language, text in json.loads(Path(order).read_text()):
            printed = io.StringIO()
            if language in names:
                with contextlib.redirect_stdout(printed):
                    exec(compile(text, language, "exec"), names[language])
            outputs.append(printed.getvalue())
    print(json.dumps(outputs))


if __name__ == "__main__":
    main(*sys.argv[1:])
