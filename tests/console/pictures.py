"""`python -m tests.console.pictures [DIRECTORY]`: the pictures of docs/console.md, taken anew.

Look at each of them before it is committed.
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
"""Of a picture that shows all pages."""


class Picture(NamedTuple):
    """What is taken."""

    name: str
    path: str
    size: tuple[int, int]
    dark: bool


PICTURES = (
    Picture("topics", "/", (1100, 410), dark=False),
    Picture("messages", "/topics/payments/0", (1000, 500), dark=True),
    Picture("log", "/topics/payments/0/log?from=60", (1000, 760), dark=False),
    Picture("log-phone", "/topics/payments/0/log?from=60", PHONE, dark=True),
    Picture("group", "/group?id=billing&to=beginning", (1100, 840), dark=False),
    Picture("configs", "/configs?kind=topic&name=orders", (1100, 600), dark=True),
    Picture("messages-phone", "/topics/orders/0", PHONE, dark=False),
    Picture("live", "/topics/orders/live", (1100, 520), dark=False),
    Picture("topic", "/topics/orders", (1100, 1000), dark=True),
    Picture("transactions", "/transactions", (1100, 330), dark=False),
    Picture("cluster", "/cluster", (1100, 800), dark=True),
)
SHEET = (
    *(picture for picture in PICTURES if picture.size != PHONE),
    Picture("key", "/topics/customers/key?key=c-007", DESKTOP, dark=False),
    Picture("message", "/topics/payments/0/60", DESKTOP, dark=False),
    Picture("groups", "/groups", DESKTOP, dark=False),
    Picture("transaction", "/transaction?id=billing-0", DESKTOP, dark=False),
    Picture("kinds", "/configs", DESKTOP, dark=False),
)
"""Every page of the console."""


@contextmanager
def served(place: str) -> Iterator[str]:
    """A broker whose data is here, and where its console is."""
    command = [sys.executable, "-m", "kwire", "serve", "--console", "--http", "0"]
    options = [f"listeners=PLAINTEXT://{BOOTSTRAP}", "offsets.topic.num.partitions=1"]
    overrides = [text for option in options for text in ("--set", option)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, *overrides], stdout=subprocess.PIPE, text=True, cwd=place, env=environment
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
    """Transactions of three producers, one of which does not commit, in segments of a mebibyte."""
    chance = random.Random(first)
    for number in range(first, max_messages):
        payer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": f"billing-{number % 3}"})
        payer.init_transactions(10)
        payer.begin_transaction()
        for _ in range(chance.randrange(3, 12)):
            payment = {"payment": chance.randrange(10**6), "amount": chance.randrange(100), "currency": "EUR"}
            receipt = {"receipt": bytes(8_000)}  # so that there are several segments
            key = f"c-{chance.randrange(50):03}"
            payer.produce("payments", json.dumps(payment), key, partition=0, headers=receipt)
        payer.flush(10)
        payer.abort_transaction(10) if number % 3 == 1 else payer.commit_transaction(10)


def fill(place: str) -> None:
    """Two lives of a broker, so that there are two leader epochs."""
    with served(place):
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
    with served(place):
        payments(first=15, max_messages=60)
        consumer = Consumer(
            {"bootstrap.servers": BOOTSTRAP, "group.id": "billing", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        consumer.consume(12_000, 10)
        consumer.commit(asynchronous=False)
        consumer.close()


def take(browser: Browser, url: str, picture: Picture, directory: Path) -> None:
    tab: Tab = browser.tab(*picture.size, dark=picture.dark)
    tab.go(f"{url}{picture.path}")
    if picture.path == "/":  # a rate is over what was seen before
        orders(5_000)
        time.sleep(3)
        tab.go(f"{url}{picture.path}")
    if picture.path.endswith("/live"):
        tab.until(lambda: "Live." in tab.text())
        orders(7)
        tab.until(lambda: "7 shown" in tab.text())
    tab.screenshot(directory / f"console-{picture.name}.png")
    tab.close()


def take_sheet(browser: Browser, url: str, name: str, size: tuple[int, int], directory: Path) -> None:
    """Each page at this size, light above dark, small on one picture."""
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
                    take(browser, url, one, Path(made))
                    shown += f'<img src="console-{one.name}.png" width="{width - 8}" style="margin: 4px">'
                shown += "<br>"
        sheet = Path(made) / "sheet.html"
        sheet.write_text(
            f'<body style="margin: 0; background: #888; line-height: 0; white-space: nowrap">{shown}'
        )
        tab = browser.tab(SHEET_WIDTH, 2 * len(rows) * height)
        tab.go(sheet.as_uri())
        tab.screenshot(directory / f"console-{name}.png")
        tab.close()


def main(directory: Path) -> None:
    path = chromium()
    if path is None:
        sys.exit("pictures need Chromium, which is not there (Debian: apt-get install chromium)")
    directory.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="kwire-pictures-") as place:
        fill(place)
        browser = Browser(path)
        try:
            with served(place) as url:
                for picture in PICTURES:
                    take(browser, url, picture, directory)
                take_sheet(browser, url, "pages", DESKTOP, directory)
                take_sheet(browser, url, "pages-phone", PHONE, directory)
        finally:
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
