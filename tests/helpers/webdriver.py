"""A browser for tests: Chromium through chromedriver and the WebDriver protocol."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
ENTER = "\ue007"
ESCAPE = "\ue00c"
TAB = "\ue004"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference to an element
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)


class Browser:
    """One window; use it in a ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> "Browser":
        self._profile = tempfile.mkdtemp(dir=self._folder)
        self._log = (self._folder / "chromedriver.log").open("w+")
        self._driver = subprocess.Popen([DRIVER, "--port=0"], stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._root = f"http://127.0.0.1:{self._port()}"
            flags = [*_FLAGS.split(), f"--user-data-dir={self._profile}"]
            capabilities = {
                "browserName": "chrome",
                "goog:chromeOptions": {"binary": BROWSER, "args": flags},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
            self._root += f"/session/{answer['sessionId']}"
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._stop()

    def _stop(self) -> None:
        self._driver.terminate()
        self._driver.wait(10)
        self._log.close()

    def _port(self, patience: float = 30.0) -> int:
        """The free port that the driver chose and prints in its first lines."""
        end = time.monotonic() + patience
        while time.monotonic() < end and self._driver.poll() is None:
            for line in (self._folder / "chromedriver.log").read_text().splitlines():
                if "started successfully on port" in line:
                    return int(line.rstrip(".").rsplit(" ", 1)[1])
            time.sleep(0.05)
        raise RuntimeError("chromedriver did not start: " + (self._folder / "chromedriver.log").read_text())

    def _call(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{verb} {path}: {json.load(error)['value']['message']}") from None

    def open(self, page: Path | str) -> None:
        """Open a file, or an address."""
        self._call("POST", "/url", {"url": page if isinstance(page, str) else page.as_uri()})

    def script(self, code: str, *arguments: Any) -> Any:
        return self._call("POST", "/execute/sync", {"script": code, "args": list(arguments)})

    def find(self, css: str) -> str:
        return self._call("POST", "/element", {"using": "css selector", "value": css})[_ELEMENT]

    def click(self, css: str) -> None:
        self.script("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", css)
        self._call("POST", f"/element/{self.find(css)}/click", {})

    def keys(self, css: str, text: str) -> None:
        self._call("POST", f"/element/{self.find(css)}/value", {"text": text})

    def resize(self, width: int, height: int) -> None:
        """Set the page's size, which may be smaller than the smallest window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def background_colours(self) -> tuple[str, str]:
        """The page's background for readers who prefer light pages, and for those who prefer dark ones."""
        colour = "return getComputedStyle(document.body).backgroundColor"
        light = self.script(colour)
        self.prefer("dark")
        dark = self.script(colour)
        self.prefer(None)
        return light, dark

    def prefer(self, scheme: str | None) -> None:
        """Behave as for readers who prefer "light" or "dark" pages; None for what the system says."""
        features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
        self.devtools("Emulation.setEmulatedMedia", {"features": features})

    def focused(self) -> str:
        """The id of the element that has the focus."""
        return self.script("return document.activeElement.id")

    def press(self, key: str) -> None:
        """Press a key of the keyboard wherever the focus is."""
        steps = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def text(self, css: str) -> str:
        """What readers see in an element, in lines without empty ones; its blanks are all ordinary ones."""
        return self.texts(css)[0]

    def texts(self, css: str) -> list[str]:
        """The same of all elements that match."""
        code = "return [...document.querySelectorAll(arguments[0])].map(element => element.innerText)"
        shown = [text.splitlines() for text in self.script(code, css)]
        return ["\n".join(line for line in lines if line.strip()).replace("\xa0", " ") for lines in shown]

    def shows(self, css: str, words: str) -> None:
        """Wait until an element says something."""
        plain = "document.querySelector(arguments[0]).textContent.replaceAll('\\u00a0', ' ')"
        self.wait(f"{plain}.includes(arguments[1])", css, words)

    def wait(self, condition: str, *arguments: Any, patience: float = 30.0) -> Any:
        """Wait until an expression in the page's language is true, and return its value."""
        end = time.monotonic() + patience
        while not (value := self.script(f"return {condition}", *arguments)):
            if time.monotonic() > end:
                raise AssertionError(f"after {patience:.0f} s it is still not true that {condition}")
            time.sleep(0.02)
        return value

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """New entries since the last call: ``browser`` for the console, ``performance`` for the network."""
        return self._call("POST", "/se/log", {"type": kind})

    def requests(self) -> list[str]:
        """Addresses that were requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
