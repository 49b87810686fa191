"""Connections that one page after the other uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError
from kwire.client.errors import Disconnected
from kwire.console.client_pool import MAX_AGE_SECONDS, ClientPool
from kwire.console.page import CLIENT_ID, ConsoleSettings
from kwire.testing import Broker
from tests.console.conftest import Client, console_at

IDLE_MS = 11 * 60_000
"""By when a broker has closed a connection on which nothing is asked (connections.max.idle.ms)."""


@pytest.fixture
def own() -> Iterator[Broker]:
    """A broker of this test's alone."""
    with Broker() as running:
        running.create_topic("kept")
        running.produce("kept", *(f"value {number}" for number in range(60)))
        yield running


@pytest.fixture
async def pages(own: Broker) -> AsyncIterator[Client]:
    async with console_at(ConsoleSettings(own.bootstrap_servers, 1, (), may_write=True)) as asked:
        yield asked


def connections(broker: Broker) -> int:
    """How many a console, or a test, has made: each begins with this."""
    return len(broker.requests.find("ApiVersions", client_id=CLIENT_ID))


def asked(broker: Broker) -> list[str]:
    return [one.api for one in broker.requests if one.client_id == CLIENT_ID]


async def test_pages_use_one_connection_and_ask_what_they_show(pages: Client, own: Broker) -> None:
    assert "value 7" in await pages.page("/topics/kept/0?from=7")
    assert asked(own) == ["ApiVersions", "Metadata", "Fetch"]
    await pages.page("/topics/kept/0?from=7")
    await pages.page("/topics/kept/0/7")
    assert asked(own)[3:] == ["Metadata", "Fetch"] * 2
    for path in ("/", "/topics/kept", "/topics/kept/0", "/groups", "/transactions", "/configs"):
        await pages.page(path)
    assert connections(own) == 1


async def test_a_page_is_made_by_a_new_connection_where_the_kept_one_has_ended(
    pages: Client, own: Broker
) -> None:
    for path, said in (("/", "kept 1 1 60"), ("/topics/kept", "0 60"), ("/topics/kept/0", "value 59")):
        assert said in await pages.page(path)
        made = connections(own)
        own.advance(IDLE_MS)
        assert said in await pages.page(path)
        assert connections(own) == made + 1
        own.restart()
        assert said in await pages.page(path)
        assert connections(own) == made + 2


async def test_a_page_that_makes_the_best_of_a_lost_answer_is_made_again(pages: Client, own: Broker) -> None:
    await pages.page("/")
    fault = own.faults.truncate_response("DescribeLogDirs")
    assert "did not respond" not in await pages.page("/")
    assert fault.is_over
    own.faults.truncate_response("DescribeLogDirs", times=2)
    assert "Broker 1 did not respond" in await pages.page("/")
    before = len(asked(own))
    await pages.page("/")
    assert asked(own)[before:].count("DescribeLogDirs") == 1, "what has lost an answer is not kept"


async def test_a_broker_that_is_gone_is_told(pages: Client, own: Broker) -> None:
    await pages.page("/topics/kept/0")
    own.crash()
    assert "no broker is reachable" in await pages.page("/topics/kept/0", 502)
    own.start()
    assert "value 59" in await pages.page("/topics/kept/0")


async def test_what_is_sent_is_sent_once(pages: Client, own: Broker) -> None:
    await pages.page("/topics/kept")
    fault = own.faults.drop_response("Produce")
    await pages.sent("/topics/kept/messages", value="sent", partition="0")
    assert [one.value for one in own.records("kept", offset=60)] == [b"sent"]
    assert fault.is_over


def clusters_of(broker: Broker, max_messages: int = 8, clock: list[float] | None = None) -> ClientPool:
    settings = ClientSettings(servers_of(broker.bootstrap_servers), CLIENT_ID)
    return ClientPool(settings, max_messages, now=lambda: clock[0] if clock else 0.0)


def one_question(cluster: CommandClient) -> int:
    return len(cluster.brokers())


def test_pages_at_the_same_time_share_none(own: Broker) -> None:
    pool = clusters_of(own, max_messages=1)

    def two(one: CommandClient) -> int:
        def other(other: CommandClient) -> int:
            assert other is not one
            return one_question(one) + one_question(other)

        return pool.run(other)

    assert pool.run(two) == 2
    assert connections(own) == 2
    assert pool.run(one_question) == 1
    assert connections(own) == 2
    assert pool.run(two) == 2
    assert connections(own) == 3, "one alone was kept of two"
    pool.close()
    assert pool.run(one_question) == 1
    assert connections(own) == 4
    pool.close()


def test_none_is_kept_for_long_nor_after_an_error(own: Broker) -> None:
    clock = [0.0]
    pool = clusters_of(own, clock=clock)
    for at, made in ((0, 1), (MAX_AGE_SECONDS - 1, 1), (MAX_AGE_SECONDS, 2)):
        clock[0] = at
        pool.run(one_question)
        assert connections(own) == made

    def failing(cluster: CommandClient) -> None:
        one_question(cluster)
        raise CommandError("no such page")

    with pytest.raises(CommandError):
        pool.run(failing)
    assert connections(own) == 2, "nothing was lost that a new connection would bring"
    pool.run(one_question)
    assert connections(own) == 3
    pool.close()


def test_what_is_lost_again_is_raised(own: Broker) -> None:
    pool = clusters_of(own)
    pool.run(one_question)
    fault = own.faults.truncate_response("Metadata", times=2)
    with pytest.raises(Disconnected):
        pool.run(one_question)
    assert fault.is_over
    assert connections(own) == 2
    assert pool.run(one_question) == 1
    pool.close()
