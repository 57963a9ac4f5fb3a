"""Makes the pictures of pages in this folder, in headless Chromium: ``python docs/images/screenshots.py``.

``python docs/images/screenshots.py PAGE OUT [WIDTH] [light|dark] [HEIGHT]`` makes one of any page, and prints the
sizes of its contents. Chromium is controlled through a pipe by the Chrome DevTools Protocol.
``CHROMIUM`` names another program.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PROGRAM = os.environ.get("CHROMIUM", "chromium")
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]


class Browser:
    """A browser without a window."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        inward, self._writer = os.pipe()
        self._reader, outward = os.pipe()

        # The browser reads from descriptor 3 and writes to descriptor 4.
        command = f'exec "$0" "$@" 3<&{inward} 4>&{outward}'
        self._process = subprocess.Popen(
            ["sh", "-c", command, PROGRAM, *OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(inward, outward),
            stderr=subprocess.DEVNULL,
        )
        os.close(inward)
        os.close(outward)
        self._count = 0
        self._data = b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._writer)
        os.close(self._reader)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, event: str) -> None:
        """Wait for an event of the protocol."""
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._data:
            part = os.read(self._reader, 1 << 20)
            if not part:
                raise RuntimeError(f"{PROGRAM} has ended; apt-get install chromium installs it")
            self._data += part
        message, _, self._data = self._data.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def picture(
        self, page: Path, out: Path, width: int = 1280, scheme: str = "light", height: int = 0, begin: str = ""
    ) -> dict[str, int]:
        """Write a picture of a page, from an element on, to its end if there is no height; return the page's size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")
        script = f"""[
            document.documentElement.scrollWidth, document.documentElement.scrollHeight,
            document.getElementById("{begin}")?.getBoundingClientRect().top ?? 0
        ]"""
        *found, top = self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"]["value"]
        clip = {"x": 0, "y": top, "width": width, "height": height or found[1] - top, "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        out.write_bytes(base64.b64decode(data))
        return dict(zip(("width", "height"), found, strict=True))


def main() -> None:
    """Make the pictures of this folder, or one of another page."""
    if sys.argv[1:]:
        page, out, *others = sys.argv[1:]
        width, scheme, height = [*others, *("1280", "light", "0")[len(others) :]][:3]
        with Browser() as browser:
            print(browser.picture(Path(page), Path(out), int(width), scheme, int(height)))
        return
    sys.path += [str(ROOT), str(ROOT / "tests" / "support")]
    from report_logs import write_report_logs

    import kbatch

    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), Browser() as browser:
        logs = write_report_logs(Path("data"))
        report = Path(kbatch.write_report(logs, "report.html").path)
        browser.picture(report, FOLDER / "report.png", height=1070)
        browser.picture(report, FOLDER / "report-phone.png", 390, "dark", 720, "transactions")


if __name__ == "__main__":
    main()
