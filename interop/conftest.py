"""Fixtures for the two shared brokers, and the table of differences that is printed at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pytest

from interop import brokers
from interop.record import Record
from interop.reference import Missing, kafka_jars
from interop.scenario import Difference, table
from interop.side_by_side import make_offsets_topic
from kwire.wire.plural import plural

FOUND = pytest.StashKey[list[Difference]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only",
        choices=["apache", "kwire"],
        help="run against one broker: apache records what it observed, kwire is compared with that record",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FOUND] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    try:
        kafka_jars()
    except Missing as missing:
        pytest.exit(str(missing), returncode=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--only``, deselect the tests that are parametrized with the other broker."""
    only = config.getoption("--only")
    others = [item for item in items if only and _kinds_of(item) - {only}]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _kinds_of(item: pytest.Item) -> set[str]:
    """Return the names of the broker classes in a test's parameters, including those inside a tuple."""
    callspec = getattr(item, "callspec", None)
    found: set[str] = set()
    for given in callspec.params.values() if callspec is not None else ():
        kinds = given if isinstance(given, tuple) else (given,)
        found |= {kind.name for kind in kinds if isinstance(kind, type) and issubclass(kind, brokers.Broker)}
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the differences that this xdist worker found to the controller process of xdist."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["differences"] = [astuple(difference) for difference in session.config.stash[FOUND]]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the differences that an xdist worker found. A worker that crashed reports none."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[FOUND] += [Difference(*values) for values in output.get("differences", ())]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found = config.stash[FOUND]
    unexplained = [difference for difference in found if not difference.reason]
    known = [difference for difference in found if difference.reason]
    if known:
        terminalreporter.section(f"{plural(len(known), 'known difference')} from Apache Kafka")
        terminalreporter.write_line(table(known))
    if unexplained:
        terminalreporter.section(f"{plural(len(unexplained), 'difference')} from Apache Kafka")
        terminalreporter.write_line(table(unexplained))


@pytest.fixture(scope="session")
def record() -> Record:
    return Record()


@pytest.fixture(scope="session")
def only(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--only") or "")


@pytest.fixture(scope="module", params=[brokers.Kwire, brokers.ApacheKafka], ids=["kwire", "apache"])
def kind(request: pytest.FixtureRequest) -> type[brokers.Broker]:
    """Return the class of the tested broker, for tests that start their own broker."""
    found: type[brokers.Broker] = request.param
    return found


@pytest.fixture(scope="session")
def apache(only: str) -> Iterator[brokers.Broker | None]:
    if only == "kwire":
        yield None
        return
    broker = brokers.ApacheKafka()
    broker.start()
    make_offsets_topic(broker)
    yield broker
    broker.discard()


@pytest.fixture(scope="session")
def kwire(only: str) -> Iterator[brokers.Broker | None]:
    if only == "apache":
        yield None
        return
    broker = brokers.Kwire()
    broker.start()
    make_offsets_topic(broker)
    yield broker
    broker.discard()


@pytest.fixture
def differences(request: pytest.FixtureRequest) -> list[Difference]:
    return request.config.stash[FOUND]
