"""The results of ``sphinx-build -b linkcheck``: which links are wrong, and which could not be checked.

    python tests/support/checked_links.py build/linkcheck/output.json

prints both, and fails if a link is wrong: its server has answered that there is no such page, or the page has no such
anchor. A server that cannot be reached, refuses programs or limits requests is no reason to fail.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["main", "wrong_links"]

_WRONG = re.compile(r"\b(404|410)\b|Anchor .* not found|unknown document")


def wrong_links(results: Iterable[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return a line for each wrong link, and one for each link that could not be checked."""
    wrong, unchecked = [], []
    for each in results:
        line = f"{each['filename']}:{each['lineno']}: {each['uri']}: {each['info']}"
        if each["status"] == "broken" and _WRONG.search(each["info"]):
            wrong.append(line)
        elif each["status"] in ("broken", "timeout", "rate-limited"):
            unchecked.append(line)
    return wrong, unchecked


def main(path: Path) -> int:
    wrong, unchecked = wrong_links(json.loads(line) for line in path.read_text().splitlines())
    for title, lines in (("not checked", unchecked), ("wrong", wrong)):
        for line in lines:
            print(f"{title}: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
