"""The screenshots of docs/console.md: `python -m tests.console.screenshots [DIRECTORY]`.

Look at each screenshot before you commit it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.console.browser import Browser, Tab, chromium

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = "127.0.0.1:19095"
DESKTOP, PHONE = (1100, 760), (390, 760)
SHEET_WIDTH = 1500
"""The width of a picture that shows all pages."""


class Screenshot(NamedTuple):
    """One screenshot of the documentation."""

    name: str
    path: str
    size: tuple[int, int]
    dark: bool


PICTURES = (
    Screenshot("topics", "/", (1100, 410), dark=False),
    Screenshot("messages", "/topics/payments/0", (1000, 500), dark=True),
    Screenshot("log", "/topics/payments/0/log?from=60", (1000, 760), dark=False),
    Screenshot("log-phone", "/topics/payments/0/log?from=60", PHONE, dark=True),
    Screenshot("group", "/group?id=billing&to=beginning", (1100, 890), dark=False),
    Screenshot("configs", "/configs?kind=topic&name=orders", (1100, 600), dark=True),
    Screenshot("messages-phone", "/topics/orders/0", PHONE, dark=False),
    Screenshot("live", "/topics/orders/live", (1100, 580), dark=False),
    Screenshot("topic", "/topics/orders", (1100, 1000), dark=True),
    Screenshot("transactions", "/transactions", (1100, 390), dark=False),
    Screenshot("cluster", "/cluster", (1100, 840), dark=True),
)
SHEET = (
    *(screenshot for screenshot in PICTURES if screenshot.size != PHONE),
    Screenshot("key", "/topics/customers/key?key=c-007", DESKTOP, dark=False),
    Screenshot("message", "/topics/payments/0/60", DESKTOP, dark=False),
    Screenshot("groups", "/groups", DESKTOP, dark=False),
    Screenshot("transaction", "/transaction?id=billing-0", DESKTOP, dark=False),
    Screenshot("kinds", "/configs", DESKTOP, dark=False),
)
"""Every page of the console."""


@contextmanager
def run_broker(data_directory: str) -> Iterator[str]:
    """Run a broker with this data directory and yield the URL of its console."""
    command = [sys.executable, "-m", "kwire", "serve", "--console", "--http", "0"]
    options = [f"listeners=PLAINTEXT://{BOOTSTRAP}", "offsets.topic.num.partitions=1"]
    overrides = [text for option in options for text in ("--set", option)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, *overrides], stdout=subprocess.PIPE, text=True, cwd=data_directory, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.stdout.readline().split()[-1].rstrip("/")
        finally:
            process.terminate()


def orders(count: int) -> None:
    chance = random.Random(count)
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "compression.type": "lz4"})
    for number in range(count):
        customer = f"c-{chance.randrange(50):03}"
        order = {"order": 1000 + number, "customer": customer, "amount": round(chance.uniform(1, 200), 2)}
        producer.produce("orders", json.dumps(order), customer, headers={"source": "shop"})
    producer.flush(10)


def payments(*, first: int, max_messages: int) -> None:
    """Write transactions of three producers, one of which aborts, in segments of 1 MiB."""
    chance = random.Random(first)
    for number in range(first, max_messages):
        payer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": f"billing-{number % 3}"})
        payer.init_transactions(10)
        payer.begin_transaction()
        for _ in range(chance.randrange(3, 12)):
            payment = {"payment": chance.randrange(10**6), "amount": chance.randrange(100), "currency": "EUR"}
            receipt: dict[str, str | bytes | None] = {
                "receipt": bytes(8_000)
            }  # large enough for several segments
            key = f"c-{chance.randrange(50):03}"
            payer.produce("payments", json.dumps(payment), key, partition=0, headers=receipt)
        payer.flush(10)
        payer.abort_transaction(10) if number % 3 == 1 else payer.commit_transaction(10)


def fill(data_directory: str) -> None:
    """Write example data in two runs of a broker, so that there are two leader epochs."""
    with run_broker(data_directory):
        admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
        small = {"segment.bytes": str(1 << 20)}
        topics = [
            NewTopic("orders", 3, 1, config={"retention.ms": str(7 * 86_400_000), "compression.type": "lz4"}),
            NewTopic("payments", 1, 1, config=small),
            NewTopic("customers", 1, 1, config={"cleanup.policy": "compact"}),
        ]
        for made in admin.create_topics(topics).values():
            made.result(10)
        orders(20_000)
        producer = Producer({"bootstrap.servers": BOOTSTRAP})
        for number in range(50):
            producer.produce("customers", json.dumps({"name": f"Customer {number}"}), f"c-{number:03}")
        producer.flush(10)
        payments(first=0, max_messages=15)
    with run_broker(data_directory):
        payments(first=15, max_messages=60)
        consumer = Consumer(
            {"bootstrap.servers": BOOTSTRAP, "group.id": "billing", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        consumer.consume(12_000, 10)
        consumer.commit(asynchronous=False)
        consumer.close()


def take_screenshot(browser: Browser, url: str, screenshot: Screenshot, directory: Path) -> None:
    tab: Tab = browser.tab(*screenshot.size, dark=screenshot.dark)
    tab.load(f"{url}{screenshot.path}")
    if screenshot.path == "/":  # rates need an earlier sample
        orders(5_000)
        time.sleep(3)
        tab.load(f"{url}{screenshot.path}")
    if screenshot.path.endswith("/live"):
        tab.wait_until(lambda: "Live." in tab.text())
        orders(7)
        tab.wait_until(lambda: "7 shown" in tab.text())
    tab.screenshot(directory / f"console-{screenshot.name}.png")
    tab.close()


def take_sheet(browser: Browser, url: str, name: str, size: tuple[int, int], directory: Path) -> None:
    """Combine all pages at this size in one picture, light above dark."""
    across = 5 if size is DESKTOP else 7
    rows = [SHEET[at : at + across] for at in range(0, len(SHEET), across)]
    width = SHEET_WIDTH // across
    height = width * size[1] // size[0]
    with TemporaryDirectory(prefix="kwire-sheet-") as made:
        shown = ""
        for row in rows:
            for dark in (False, True):
                for page in row:
                    one = page._replace(name=f"{page.name}-{dark}", size=size, dark=dark)
                    take_screenshot(browser, url, one, Path(made))
                    shown += f'<img src="console-{one.name}.png" width="{width - 8}" style="margin: 4px">'
                shown += "<br>"
        sheet = Path(made) / "sheet.html"
        sheet.write_text(
            f'<body style="margin: 0; background: #888; line-height: 0; white-space: nowrap">{shown}'
        )
        tab = browser.tab(SHEET_WIDTH, 2 * len(rows) * height)
        tab.load(sheet.as_uri())
        tab.screenshot(directory / f"console-{name}.png")
        tab.close()


def main(directory: Path) -> None:
    path = chromium()
    if path is None:
        sys.exit("pictures need Chromium, which is not there (Debian: apt-get install chromium)")
    directory.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="kwire-pictures-") as data_directory:
        fill(data_directory)
        browser = Browser(path)
        try:
            with run_broker(data_directory) as url:
                for screenshot in PICTURES:
                    take_screenshot(browser, url, screenshot, directory)
                take_sheet(browser, url, "pages", DESKTOP, directory)
                take_sheet(browser, url, "pages-phone", PHONE, directory)
        finally:
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
