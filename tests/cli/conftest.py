"""Fixtures that run commands against one shared broker; each test uses its own topic names."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kwire.cli.tools import main
from kwire.testing import Broker
from tests.cli.run_command import CommandResult, RunCommand


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    # Some tests write records with old timestamps, so retention is off.
    settings = {"num.partitions": 1, "offsets.topic.num.partitions": 2, "log.retention.hours": -1}
    with Broker(settings) as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: Broker) -> AdminClient:
    """Return a confluent-kafka admin client, to check the results."""
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture(scope="session")
def producer(broker: Broker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Return a function that runs a command without adding --bootstrap-server."""

    def run_command(*arguments: str) -> CommandResult:
        capsys.readouterr()
        try:
            status = main(arguments[0], arguments[1:], {})
        except SystemExit as ended:
            status = int(str(ended.code))
        return CommandResult(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def run(broker: Broker, offline: RunCommand) -> RunCommand:
    """Return a function that runs a command against the shared broker."""
    return lambda *arguments: offline(*arguments, "--bootstrap-server", broker.bootstrap_servers)


@pytest.fixture
def set_stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Return a function that puts bytes on standard input."""
    return lambda data: monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
