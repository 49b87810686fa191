"""The pages of groups and transactions, with confluent-kafka clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.testing import Broker
from tests.console.conftest import ConsoleClient, text_of

STRANGE = "a/b?<i>&é"


@pytest.fixture(scope="module", autouse=True)
def topic(admin: AdminClient, producer: Producer) -> None:
    """Create a topic of ten messages."""
    admin.create_topics([NewTopic("ten", 1, 1)])["ten"].result(10)
    for number in range(10):
        producer.produce("ten", f"{number}", partition=0, timestamp=1_000_000 + number)
    producer.flush(10)


def committed(admin: AdminClient, group: str) -> list[int]:
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
    return [one.offset for one in found.topic_partitions]


def commit(broker: Broker, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition("ten", 0, offset)], asynchronous=False)
    consumer.close()


@pytest.fixture(params=["classic", "consumer"])
def member(request: pytest.FixtureRequest, broker: Broker) -> Iterator[str]:
    """Yield the group of an active member that has read four messages."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"live-{request.param}",
            "group.protocol": request.param,
            "client.id": "console-test",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["ten"])
    *_, last = consumer.consume(4, 10)
    consumer.commit(message=last, asynchronous=False)
    yield f"live-{request.param}"
    consumer.close()


async def test_group_page_has_members_and_lag(console: ConsoleClient, member: str) -> None:
    kind = member.removeprefix("live-")
    assert f"{member} Stable {kind.capitalize()} consumer" in (await console.page("/groups")).replace(
        f" {kind} ", f" {kind.capitalize()} "
    )
    page = await console.page(f"/group?id={member}")
    assert "ten-0 4 10 6 console-test" in page
    assert "Total lag 6" in page
    assert "stop them first" in page
    response = await console.send("/group/offsets", id=member, to="beginning")
    assert response.status_code == 404
    assert "has 1 member: stop them first" in text_of(response.text)


@pytest.mark.parametrize(
    ("to", "offset"), [("beginning", 0), ("end", 10), ("4", 4), ("-3", 7), ("1970-01-01T00:16:40.002", 2)]
)
async def test_offset_reset_is_previewed_then_applied(
    console: ConsoleClient, broker: Broker, admin: AdminClient, to: str, offset: int
) -> None:
    commit(broker, "moved", 5)
    assert f"ten-0 5 {offset} 10" in await console.page(f"/group?id=moved&to={to}")
    assert committed(admin, "moved") == [5]
    place = await console.submit("/group/offsets", id="moved", to=to)
    assert committed(admin, "moved") == [offset]
    assert "The offsets were reset" in await console.page(place)


async def test_group_with_special_characters_in_its_name(
    console: ConsoleClient, broker: Broker, admin: AdminClient
) -> None:
    commit(broker, STRANGE, 3)
    assert "<i>" not in await console.source("/groups")
    assert STRANGE in await console.page("/groups")
    place = await console.submit("/group/offsets", id=STRANGE, to="end", topic="ten:0")
    assert committed(admin, STRANGE) == [10]
    assert STRANGE in await console.page(place)
    assert "<i>" not in await console.source(place)


async def test_group_errors_are_shown(console: ConsoleClient, broker: Broker) -> None:
    commit(broker, "wrong", 1)
    assert "there is no group 'wron', did you mean 'wrong'?" in await console.page("/group?id=wron", 404)
    for fields, status, sentence in (
        ({"to": ""}, 400, "the new position is missing"),
        ({"to": "sometime"}, 400, "position sometime: expected 'beginning'"),
        ({"to": "end", "topic": "none"}, 404, "there is no topic 'none'"),
        ({"to": "end", "topic": "ten:x"}, 400, "expected TOPIC, or TOPIC:0,1"),
        ({"to": "end", "topic": "ten:7"}, 404, "has only partition 0, not 7"),
    ):
        response = await console.send("/group/offsets", id="wrong", **fields)
        assert response.status_code == status
        assert sentence in text_of(response.text)
    response = await console.http.post("/console/group/offsets", data={"id": "wrong", "to": "end"})
    assert response.status_code == 403


async def test_transactions_page(console: ConsoleClient, broker: Broker, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("paid", 1, 1)])["paid"].result(10)
    producers = {}
    for name in ("pay-1", "pay-2", "pay-3"):
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("paid", name, partition=0)
        producer.flush(10)
        producers[name] = producer
    producers["pay-1"].commit_transaction(10)
    producers["pay-2"].abort_transaction(10)
    assert "pay-3 Ongoing" in await console.page("/transactions")
    only = await console.page("/transactions?open=1")
    assert "pay-3" in only
    assert "pay-1" not in only
    page = await console.page("/transaction?id=pay-3")
    assert "State Ongoing" in page
    assert "paid-0" in page
    assert "transactional id none" in await console.page("/transaction?id=none", 404)

    listed = await console.page("/topics/paid/0?from=beginning")
    assert "pay-1 committed" in listed
    assert "pay-2 aborted" in listed
    assert "pay-3 undecided" in listed
    assert '{"marker": "abort"' in listed
    drawn = await console.source("/topics/paid/0/log")
    assert drawn.count('class="batch ') == 5
    for fate in ("committed", "aborted", "open"):
        assert drawn.count(f'class="batch {fate}"') == 1
    assert "last stable offset" in drawn
    result = text_of(drawn)
    assert "commit marker" in result
    assert "abort marker" in result
    assert "from 2" in result
    producers["pay-3"].abort_transaction(10)
    assert (await console.source("/topics/paid/0/log")).count('class="batch aborted"') == 2
