"""Makes the pictures of reports in docs/images: ``python tests/support/report_screenshots.py``.

``python tests/support/report_screenshots.py PAGE OUT [WIDTH] [light|dark] [HEIGHT]`` makes one of any page, and
prints the size of its contents.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from browser import Browser
from report_logs import write_report_logs

import kbatch

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def main() -> None:
    """Make the pictures of the documentation, or one of another page."""
    if sys.argv[1:]:
        page, out, *others = sys.argv[1:]
        width, scheme, height = [*others, *("1280", "light", "0")[len(others) :]][:3]
        with Browser() as browser:
            print(browser.picture(Path(page), Path(out), int(width), scheme, int(height)))
        return
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), Browser() as browser:
        logs = write_report_logs(Path("data"))
        report = Path(kbatch.write_report(logs, "report.html").path)
        browser.picture(report, IMAGES / "report.png", height=1070)
        browser.picture(report, IMAGES / "report-phone.png", 390, "dark", 720, "transactions")


if __name__ == "__main__":
    main()
