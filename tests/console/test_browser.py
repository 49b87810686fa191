"""The console in Chromium: by keyboard, at two widths, in light and dark mode."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.console.browser import Browser, Tab, chromium

PATH = chromium()
pytestmark = pytest.mark.skipif(
    PATH is None, reason="Chromium is not there (Debian: apt-get install chromium)"
)

PHONE, DESKTOP = (390, 844), (1280, 800)
PAGES = (
    "/",
    "/topics/orders",
    "/topics/orders/0",
    "/topics/orders/0/0",
    "/topics/orders/0/log",
    "/topics/orders/key?key=customer-1",
    "/topics/orders/live",
    "/topics/none",
    "/groups",
    "/group?id=readers&to=beginning",
    "/transactions",
    "/transaction?id=pay",
    "/configs",
    "/configs?kind=topic&name=orders",
    "/cluster",
)
NAMED = {"link", "button", "textbox", "searchbox", "combobox", "checkbox", "region", "navigation", "search"}
"""Accessibility roles that need a name."""


class Site(NamedTuple):
    """A broker with its console, started by the command line, and a browser."""

    bootstrap: str
    url: str
    browser: Browser

    def tab(self, path: str, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Tab:
        tab = self.browser.tab(*size, dark=dark)
        tab.load(f"{self.url}{path}")
        return tab


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    assert PATH is not None
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(place), "--console", "--http", "0"]
    with (
        open(place.with_suffix(".log"), "w") as log,
        subprocess.Popen(
            [*command, "--set", "listeners=PLAINTEXT://127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        browser = Browser(PATH)
        try:
            bootstrap = process.stdout.readline().partition(" serves on ")[2].partition(",")[0]
            url = process.stdout.readline().split()[-1].rstrip("/")
            _fill(bootstrap)
            yield Site(bootstrap, url, browser)
        finally:
            browser.close()
            process.terminate()


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(10)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(120):
        producer.produce("orders", f'{{"order": {number}}}', f"customer-{number % 5}", partition=0)
    producer.flush(10)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    consumer.close()
    for commits in (True, False):
        payer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "pay"})
        payer.init_transactions(10)
        payer.begin_transaction()
        payer.produce("orders", "paid", partition=0)
        payer.commit_transaction(10) if commits else payer.abort_transaction(10)


def focused_name(tab: Tab) -> str:
    """Return the accessible name of the focused element."""
    return str(
        tab.run(
            "(e => e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText || e.id)"
            "(document.activeElement)"
        )
    ).strip()


def tab_to(tab: Tab, name: str) -> None:
    """Press Tab until the element with this name has the focus."""
    passed = []
    for _ in range(150):
        tab.press("Tab")
        if (found := focused_name(tab)) == name:
            assert tab.run("document.activeElement.matches(':focus-visible')"), (
                f"{name} is not seen to have it"
            )
            return
        passed.append(found)
    raise AssertionError(f"{name} is not reached by Tab, but {passed}")


def test_console_is_usable_by_keyboard(site: Site) -> None:
    tab = site.tab("/")
    tab.press("Tab")
    assert focused_name(tab) == "Skip to the content"
    tab.press("Enter")
    tab_to(tab, "orders")
    tab.wait_for_load(lambda: tab.press("Enter"))
    assert tab.run("document.querySelector('h1').innerText") == "orders"
    tab_to(tab, "Key")
    tab_to(tab, "Key")  # the first one is the search field
    tab.type("by-keyboard")
    tab_to(tab, "Partition")
    tab.type("1")
    tab_to(tab, "Value")
    tab.type("typed, not clicked")
    tab_to(tab, "Produce")
    tab.wait_for_load(lambda: tab.press("Enter"))
    page = tab.text()
    assert "The message was written" in page
    assert "typed, not clicked" in page
    tab_to(tab, "Partition 1")
    tab.wait_for_load(lambda: tab.press("Enter"))
    assert "by-keyboard" in tab.text()
    assert tab.complaints == []
    tab.close()


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_no_errors_and_are_accessible(site: Site, path: str) -> None:
    """Check browser errors, accessible names, and the width on a phone."""
    for size in (DESKTOP, PHONE):
        tab = site.tab(path, size)
        expected = 1 if path == "/topics/none" else 0  # the browser reports the status 404
        assert len(tab.complaints) == expected, tab.complaints
        assert tab.run("document.documentElement.scrollWidth") <= size[0]
        nodes = tab.accessibility_nodes()
        roles = [node["role"] for node in nodes]
        assert roles.count("main") == 1
        assert tab.run("document.querySelectorAll('h1').length") == 1
        assert [node for node in nodes if node["role"] in NAMED and not node["name"]] == []
        levels = tab.run("[...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
        assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
        assert tab.run("document.querySelectorAll('th:not([scope])').length") == 0
        assert tab.run("document.documentElement.lang") == "en"
        assert tab.run(SEPARATED_LABELS_SCRIPT) == []
        tab.close()


SEPARATED_LABELS_SCRIPT = """
[...document.querySelectorAll(".bar label[for]")].filter(label => {
  const [text, field] = [label, document.getElementById(label.htmlFor)].map(e => e.getBoundingClientRect());
  return text.top >= field.bottom || text.bottom <= field.top;
}).map(label => label.textContent)
"""
"""Returns the labels that are not in the same line as their field."""


@pytest.mark.parametrize("path", PAGES)
def test_text_contrast_in_light_and_dark(site: Site, path: str) -> None:
    """WCAG 2 requires a contrast of at least 4.5 to 1."""
    grounds: list[Any] = []
    for dark in (False, True):
        tab = site.tab(path, dark=dark)
        assert tab.run(LOW_CONTRAST_SCRIPT) == []
        grounds.append(tab.run("getComputedStyle(document.body).backgroundColor"))
        tab.close()
    assert grounds[0] != grounds[1]


LOW_CONTRAST_SCRIPT = """
(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [x, y, z] = [r, g, b].map(v => linear(v / 255));
    return .2126 * x + .7152 * y + .0722 * z;
  };
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = numbers(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!e.checkVisibility() || e.closest("option, svg")) continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(ground(e))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < 4.5) found.push([e.tagName, e.textContent.trim().slice(0, 40), contrast]);
  }
  return found;
})()
"""


def test_live_tail_shows_new_messages(site: Site) -> None:
    tab = site.tab("/topics/orders/live")
    tab.wait_until(lambda: "Live." in tab.text())
    producer = Producer({"bootstrap.servers": site.bootstrap})
    producer.produce("orders", "<script>window.ran = 4</script>", "came", partition=0)
    producer.flush(10)
    tab.wait_until(lambda: "came" in tab.text())
    assert "<script>window.ran = 4</script>" in tab.text()
    assert tab.run("typeof window.ran") == "undefined"
    assert "1 shown" in tab.text()
    tab_to(tab, "Pause")
    tab.press("Enter")
    assert "Paused." in tab.text()
    producer.produce("orders", "meanwhile", partition=0)
    producer.flush(10)
    tab.press("Enter")
    tab.wait_until(lambda: "Live." in tab.text())
    assert "meanwhile" not in tab.text()
    assert tab.complaints == []
    tab.close()


def test_offsets_are_reset_by_keyboard(site: Site) -> None:
    tab = site.tab("/group?id=readers")
    tab_to(tab, "New position")
    tab.type("beginning")
    tab.wait_for_load(lambda: tab.press("Enter"))
    tab_to(tab, "Reset to these offsets")
    tab.wait_for_load(lambda: tab.press("Enter"))
    assert "The offsets were reset" in tab.text()
    tab.close()


def test_scripts_in_messages_and_names_do_not_run(site: Site) -> None:
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for text in ("<script>window.ran = 1</script>", "<img src=x onerror='window.ran = 2'>"):
        producer.produce("orders", text, text, partition=1, headers={text: text})
    producer.flush(10)
    for path in (
        "/topics/orders/1",
        "/topics/orders/1/0",
        "/topics/orders/1/1",
        "/?q=<script>window.ran=3</script>",
    ):
        tab = site.tab(path)
        assert tab.run("typeof window.ran") == "undefined"
        assert tab.complaints == []
        tab.close()


@pytest.fixture
def other_site(site: Site) -> Iterator[str]:
    """Run a foreign site with a page that submits a form to the console and embeds it."""
    page = (
        f"<form method=post action='{site.url}/topics/orders/messages'><input name=value value=evil></form>"
        f"<iframe src='{site.url}/'></iframe>"
    ).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *values: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/"  # another host name is another site
        server.shutdown()
        thread.join()


def test_another_site_cannot_submit_forms_or_embed_pages(site: Site, other_site: str) -> None:
    tab = site.browser.tab()
    tab.load(other_site)
    tab.wait_until(lambda: any("frame-ancestors" in text for text in tab.console_errors()))
    script = f"fetch('{site.url}/').then(a => a.text()).catch(e => 'refused: ' + e)"
    assert str(tab.run(script)).startswith("refused: ")
    tab.wait_for_load(lambda: tab.run("document.forms[0].submit()"))
    assert "nothing was changed" in tab.text()
    tab.close()


@pytest.mark.parametrize("path", PAGES)
def test_screenshots_of_each_page(site: Site, path: str, tmp_path: Path) -> None:
    taken = set()
    for number, (size, dark) in enumerate(product((DESKTOP, PHONE), (False, True))):
        tab = site.tab(path, size, dark=dark)
        picture = tmp_path / f"{number}.png"
        tab.screenshot(picture)
        taken.add(picture.read_bytes())
        assert picture.read_bytes()[16:24] == size[0].to_bytes(4) + size[1].to_bytes(4)
        tab.close()
    assert len(taken) == 4, "each is another"
