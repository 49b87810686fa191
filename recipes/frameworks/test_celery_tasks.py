import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import celery_tasks
import pytest

from kwire.testing import Broker

ORDERS = [f"order {number}" for number in range(6)]
GROUP = "charges-consumer-group"  # kombu's consumer group of the queue
WORKER = ["-m", "celery", "-A", "celery_tasks", "worker"]
OPTIONS = ["--concurrency", "1", "--without-mingle", "--without-gossip", "--loglevel", "ERROR"]


class Payments(ThreadingHTTPServer):
    """A payment service that does not respond to the charge of order 2 until `resumed` is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.charges: list[str] = []
        self.resumed = Event()


class Handler(BaseHTTPRequestHandler):
    server: Payments

    def do_POST(self) -> None:
        order = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.charges.append(order)
        if order == "order 2":
            self.server.resumed.wait(60)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Do not log requests."""


@pytest.fixture
def payments() -> Iterator[Payments]:
    with Payments() as server:
        Thread(target=server.serve_forever).start()
        yield server
        server.resumed.set()
        server.shutdown()


@contextmanager
def worker() -> Iterator[None]:
    """Run the worker, and kill it at the end."""
    process = subprocess.Popen([sys.executable, *WORKER, *OPTIONS])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_killed_worker_loses_no_task(
    kwire_broker: Broker, payments: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", f"confluentkafka://{kwire_broker.bootstrap_servers}")
    monkeypatch.setenv("PAYMENTS_URL", f"http://127.0.0.1:{payments.server_port}")
    for order in ORDERS:
        celery_tasks.charge.delay(order)
    with worker():
        kwire_broker.wait_until(lambda: "order 2" in payments.charges, timeout_s=60)
        kwire_broker.wait_until(lambda: kwire_broker.lag(GROUP, "charges") <= 4)  # two commits
    payments.resumed.set()
    kwire_broker.advance(45_000)  # the session of the killed worker times out
    with worker():
        kwire_broker.wait_until(lambda: kwire_broker.lag(GROUP, "charges") == 0, timeout_s=60)
    assert payments.charges == [*ORDERS[:3], *ORDERS[2:]], "the worker was killed while it charged order 2"
