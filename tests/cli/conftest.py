"""One broker for all commands: each test uses names of its own."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kwire.cli.tools import main
from kwire.testing import Broker
from tests.cli.running import Desk, Ran


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    # Many a message is of years ago, and is to stay.
    settings = {"num.partitions": 1, "offsets.topic.num.partitions": 2, "log.retention.hours": -1}
    with Broker(settings) as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: Broker) -> AdminClient:
    """A stock client, which says whether it was done."""
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture(scope="session")
def producer(broker: Broker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Desk:
    """Run a command that asks no broker, or that says which."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        try:
            status = main(arguments[0], arguments[1:], {})
        except SystemExit as ended:
            status = int(str(ended.code))
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture
def desk(broker: Broker, offline: Desk) -> Desk:
    """Run a command against the broker."""
    return lambda *arguments: offline(*arguments, "--bootstrap-server", broker.bootstrap_servers)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Puts bytes on the standard input."""
    return lambda data: monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
