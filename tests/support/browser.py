"""Headless Chromium, controlled through a pipe by the Chrome DevTools Protocol; ``CHROMIUM`` names another program."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = os.environ.get("CHROMIUM", "chromium")
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]


class Browser:
    """A browser without a window."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        inward, self._writer = os.pipe()
        self._reader, outward = os.pipe()

        def place() -> None:
            """The browser reads from descriptor 3 and writes to descriptor 4, which may be others here."""
            ends = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (inward, outward)]
            for number, end in zip((3, 4), ends, strict=True):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [PROGRAM, *OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=place,
            pass_fds=(3, 4),
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
