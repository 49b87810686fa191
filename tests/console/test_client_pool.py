"""Connections of the console that several pages share."""

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
from tests.console.conftest import ConsoleClient, run_console

IDLE_MS = 11 * 60_000
"""More than connections.max.idle.ms, after which a broker closes an idle connection."""


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """Run a broker for one test."""
    with Broker() as running:
        running.create_topic("kept")
        running.produce("kept", *(f"value {number}" for number in range(60)))
        yield running


@pytest.fixture
async def pages(own_broker: Broker) -> AsyncIterator[ConsoleClient]:
    async with run_console(
        ConsoleSettings(own_broker.bootstrap_servers, 1, (), may_write=True)
    ) as recorded_apis:
        yield recorded_apis


def connections(broker: Broker) -> int:
    """Return the number of connections: each one starts with an ApiVersions request."""
    return len(broker.requests.find("ApiVersions", client_id=CLIENT_ID))


def recorded_apis(broker: Broker) -> list[str]:
    return [one.api for one in broker.requests if one.client_id == CLIENT_ID]


async def test_pages_share_one_connection_and_send_few_requests(
    pages: ConsoleClient, own_broker: Broker
) -> None:
    assert "value 7" in await pages.page("/topics/kept/0?from=7")
    assert recorded_apis(own_broker) == ["ApiVersions", "Metadata", "Fetch"]
    await pages.page("/topics/kept/0?from=7")
    await pages.page("/topics/kept/0/7")
    assert recorded_apis(own_broker)[3:] == ["Metadata", "Fetch"] * 2
    for path in ("/", "/topics/kept", "/topics/kept/0", "/groups", "/transactions", "/configs"):
        await pages.page(path)
    assert connections(own_broker) == 1


async def test_page_reconnects_if_the_kept_connection_was_closed(
    pages: ConsoleClient, own_broker: Broker
) -> None:
    for path, said in (("/", "kept 1 1 60"), ("/topics/kept", "0 60"), ("/topics/kept/0", "value 59")):
        assert said in await pages.page(path)
        made = connections(own_broker)
        await own_broker.aio.advance(IDLE_MS)
        assert said in await pages.page(path)
        assert connections(own_broker) == made + 1
        await own_broker.aio.restart()
        assert said in await pages.page(path)
        assert connections(own_broker) == made + 2


async def test_page_with_a_lost_response_is_rendered_again(pages: ConsoleClient, own_broker: Broker) -> None:
    await pages.page("/")
    fault = own_broker.faults.truncate_response("DescribeLogDirs")
    assert "did not respond" not in await pages.page("/")
    assert fault.is_over
    own_broker.faults.truncate_response("DescribeLogDirs", times=2)
    assert "Broker 1 did not respond" in await pages.page("/")
    before = len(recorded_apis(own_broker))
    await pages.page("/")
    assert recorded_apis(own_broker)[before:].count("DescribeLogDirs") == 1, (
        "what has lost an answer is not kept"
    )


async def test_stopped_broker_is_reported(pages: ConsoleClient, own_broker: Broker) -> None:
    await pages.page("/topics/kept/0")
    await own_broker.aio.crash()
    assert "no broker is reachable" in await pages.page("/topics/kept/0", 502)
    await own_broker.aio.start()
    assert "value 59" in await pages.page("/topics/kept/0")


async def test_form_is_sent_once(pages: ConsoleClient, own_broker: Broker) -> None:
    await pages.page("/topics/kept")
    fault = own_broker.faults.drop_response("Produce")
    await pages.submit("/topics/kept/messages", value="sent", partition="0")
    assert [one.value for one in await own_broker.aio.records("kept", offset=60)] == [b"sent"]
    assert fault.is_over


def pool_of(broker: Broker, max_messages: int = 8, clock: list[float] | None = None) -> ClientPool:
    settings = ClientSettings(servers_of(broker.bootstrap_servers), CLIENT_ID)
    return ClientPool(settings, max_messages, now=lambda: clock[0] if clock else 0.0)


def send_one_request(cluster: CommandClient) -> int:
    return len(cluster.brokers())


def test_concurrent_pages_use_separate_connections(own_broker: Broker) -> None:
    pool = pool_of(own_broker, max_messages=1)

    def two(one: CommandClient) -> int:
        def other(other: CommandClient) -> int:
            assert other is not one
            return send_one_request(one) + send_one_request(other)

        return pool.run(other)

    assert pool.run(two) == 2
    assert connections(own_broker) == 2
    assert pool.run(send_one_request) == 1
    assert connections(own_broker) == 2
    assert pool.run(two) == 2
    assert connections(own_broker) == 3, "one alone was kept of two"
    pool.close()
    assert pool.run(send_one_request) == 1
    assert connections(own_broker) == 4
    pool.close()


def test_connection_is_closed_when_idle_or_after_an_error(own_broker: Broker) -> None:
    clock = [0.0]
    pool = pool_of(own_broker, clock=clock)
    for at, made in ((0, 1), (MAX_AGE_SECONDS - 1, 1), (MAX_AGE_SECONDS, 2)):
        clock[0] = at
        pool.run(send_one_request)
        assert connections(own_broker) == made

    def failing(cluster: CommandClient) -> None:
        send_one_request(cluster)
        raise CommandError("no such page")

    with pytest.raises(CommandError):
        pool.run(failing)
    assert connections(own_broker) == 2, "nothing was lost that a new connection would bring"
    pool.run(send_one_request)
    assert connections(own_broker) == 3
    pool.close()


def test_second_lost_connection_raises(own_broker: Broker) -> None:
    pool = pool_of(own_broker)
    pool.run(send_one_request)
    fault = own_broker.faults.truncate_response("Metadata", times=2)
    with pytest.raises(Disconnected):
        pool.run(send_one_request)
    assert fault.is_over
    assert connections(own_broker) == 2
    assert pool.run(send_one_request) == 1
    pool.close()
