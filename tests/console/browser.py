"""A driver for headless Chromium: pages, keys, screen size, light and dark mode.

It uses the DevTools protocol over a pipe (`--remote-debugging-pipe`: JSON messages that end with NUL), so the
standard library suffices. Key events go to the focused element.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_SECONDS: Final = 60.0
OPTIONS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)
READ_FD, WRITE_FD = 3, 4
"""The file descriptors on which Chromium reads commands and writes responses."""
KEYS: Final = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "Escape": (27, "")}
"""Key codes and the text that the keys type."""

Event = dict[str, Any]


def chromium() -> str | None:
    """Return the path of Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A Chromium process with a temporary profile, for one thread."""

    def __init__(self, path: str) -> None:
        self._home = TemporaryDirectory(prefix="kwire-browser-", ignore_cleanup_errors=True)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # The sandbox does not work for root.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        spares = [os.dup(commands), os.dup(answers)]  # in case one has the number that the other needs
        actions = [
            (os.POSIX_SPAWN_DUP2, spares[0], READ_FD),
            (os.POSIX_SPAWN_DUP2, spares[1], WRITE_FD),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),  # complaints about a missing desktop
        ]
        self._pid = os.posix_spawn(
            path,
            [path, *OPTIONS, *sandbox, f"--user-data-dir={self._home.name}", "about:blank"],
            {**os.environ, "HOME": self._home.name},
            file_actions=actions,
            setpgroup=0,
        )
        for fd in (commands, answers, *spares):
            os.close(fd)
        self._buffer = b""
        self._asked = 0
        self._events: list[Event] = []

    def close(self) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._commands)
        os.close(self._answers)
        self._home.cleanup()

    def tab(self, width: int = 1280, height: int = 800, *, dark: bool = False) -> Tab:
        context = self.send_command("Target.createBrowserContext")["browserContextId"]
        target = self.send_command("Target.createTarget", url="about:blank", browserContextId=context)[
            "targetId"
        ]
        session = self.send_command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, session, target, width, height, dark=dark)

    def send_command(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its response. Raise RuntimeError with the browser's error."""
        self._asked += 1
        number = self._asked
        message: Event = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (found := self._next(deadline)).get("id") != number:
            self._events.append(found)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']['message']}")
        result: dict[str, Any] = found["result"]
        return result

    def events(self, session: str) -> list[Event]:
        """Return the events of a tab since the last call."""
        while b"\0" in self._buffer or select.select([self._answers], [], [], 0)[0]:
            self._events.append(self._next(time.monotonic() + TIMEOUT_SECONDS))
        mine = [event for event in self._events if event.get("sessionId") == session]
        self._events = [event for event in self._events if event.get("sessionId") != session]
        return mine

    def _next(self, deadline: float) -> Event:
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        event: Event = json.loads(message)
        return event


class Tab:
    """A tab of the browser."""

    def __init__(
        self, browser: Browser, session: str, target: str, width: int, height: int, *, dark: bool
    ) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.complaints: list[str] = []
        """Script errors and blocked resources, updated by `console_errors`."""
        self._loads = 0
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self.send_command(f"{domain}.enable")
        self.send_command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send_command("Emulation.setEmulatedMedia", features=[scheme])

    def send_command(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send_command(method, self._session, **params)

    def close(self) -> None:
        self._browser.send_command("Target.closeTarget", targetId=self._target)

    def load(self, url: str) -> None:
        """Load a page and wait for it."""
        self.wait_for_load(lambda: self.send_command("Page.navigate", url=url))

    def wait_for_load(self, act: Callable[[], object]) -> None:
        """Run an action that loads another page, and wait for the page."""
        self.console_errors()
        before = self._loads
        act()
        self.wait_until(lambda: (self.console_errors(), self._loads)[1] > before)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is true. Raise TimeoutError."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("what was waited for has not come about")
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """Evaluate a JavaScript expression. Raise RuntimeError for an exception."""
        answer = self.send_command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "an exception"))
        return answer["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a named key."""
        code, text = KEYS[key]
        output = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.send_command(
            "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **output, text=text
        )
        self.send_command("Input.dispatchKeyEvent", type="keyUp", **output)

    def type(self, text: str) -> None:
        """Type text into the focused element."""
        for letter in text:
            self.send_command("Input.dispatchKeyEvent", type="char", text=letter)

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.run("document.body.innerText"))

    def screenshot(self, path: Path) -> None:
        """Save a screenshot of the visible part of the page."""
        data = self.send_command("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def accessibility_nodes(self) -> list[dict[str, Any]]:
        """Return role and name of each node in the accessibility tree, in order."""
        nodes = self.send_command("Accessibility.getFullAXTree")["nodes"]
        return [
            {"role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
            for node in nodes
            if not node["ignored"]
        ]

    def console_errors(self) -> list[str]:
        """Return the errors of the page so far."""
        for event in self._browser.events(self._session):
            params = event["params"]
            match event["method"]:
                case "Page.loadEventFired":
                    self._loads += 1
                case "Runtime.exceptionThrown":
                    self.complaints.append(params["exceptionDetails"]["text"])
                case "Log.entryAdded" if params["entry"]["level"] == "error":
                    self.complaints.append(params["entry"]["text"])
        return self.complaints
