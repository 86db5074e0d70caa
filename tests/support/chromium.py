"""A real Chromium without a window, driven by the DevTools protocol through two pipes: no port, no further package."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_chromium() -> str | None:
    """Path of the browser; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser.

    Attributes:
        errors: Messages of the console that are errors or warnings, and exceptions of scripts.
        requests: Addresses that the page asked for, itself and what it holds excepted.
    """

    def __init__(self) -> None:
        path = find_chromium()
        assert path is not None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        # The browser reads commands from descriptor 3 and writes answers to descriptor 4.
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--mute-audio"]
        flags += [f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [path, *flags],
            preexec_fn=lambda: _take_places(commands, answers),
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.getTargets")["targetInfos"]
        page = next(info["targetId"] for info in target if info["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    def open(self, path: Path) -> None:
        """Opens a file and waits until its script has filled it."""
        self._page = path.resolve().as_uri()
        self.call("Page.navigate", url=self._page)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def evaluate(self, expression: str) -> Any:
        """Value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 20.0) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            # A script that failed will not make it true any more.
            if self.errors or time.monotonic() > end:
                raise AssertionError(f"{expression} was not true within {seconds:g} s; errors: {self.errors}")
            time.sleep(0.05)

    def move(self, x: float, y: float) -> None:
        """Moves the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Presses and releases a key, such as `ArrowRight`."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_CODES.get(key, 0))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._keep(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def _keep(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if address != getattr(self, "_page", "") and not address.startswith("data:"):
                self.requests.append(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()


def _take_places(commands: int, answers: int) -> None:
    """In the new process: the pipes as descriptors 3 and 4, whatever these were before."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in (commands, answers)]
    for place, descriptor in zip((3, 4), high, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)


_CODES = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9}
