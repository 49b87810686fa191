"""The pages of topics and messages, with a confluent-kafka producer."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.cli.records.partitioner import partition_for_key
from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.console.fetching import fetch, fetch_messages
from kwire.testing import Broker
from tests.console.conftest import ConsoleClient


def create_topic_with_messages(
    broker: Broker, admin: AdminClient, producer: Producer, topic: str, count: int
) -> None:
    """Create a topic of two partitions with `count` messages in the first."""
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(10)
    for number in range(count):
        producer.produce(
            topic, f"value {number}", f"key {number % 3}", partition=0, timestamp=1_000_000 + number
        )
    producer.flush(10)


async def test_topic_is_listed_with_partitions_and_sizes(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    create_topic_with_messages(broker, admin, producer, "shape", 7)
    assert "shape 2 1 7" in await console.page("/")
    assert "shape" not in await console.page("/?q=unheard")
    assert "There are no topics with unheard in their name" in await console.page("/?q=unheard")
    assert "__consumer_offsets" not in await console.page("/")
    page = await console.page("/topics/shape")
    assert "Partitions" in page
    assert "0 0 7" in page


async def test_missing_topic_is_an_error(console: ConsoleClient, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("there", 1, 1)])["there"].result(10)
    unknown = await console.page("/topics/ther", 404)
    assert "there is no topic 'ther', or this user may not describe it, did you mean 'there'?" in unknown
    assert "topic there has only partition 0, not 7" in await console.page("/topics/there/7", 404)
    assert "has no message at offset 3: the next offset is 0" in await console.page("/topics/there/0/3", 404)
    assert "there is no page /console/elsewhere for GET" in await console.page("/elsewhere", 404)


async def test_messages_are_paged(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    create_topic_with_messages(broker, admin, producer, "paged", 120)
    newest = await console.page("/topics/paged/0")
    assert "value 119" in newest
    assert "value 69" not in newest
    first = await console.source("/topics/paged/0?from=beginning")
    assert "value 49" in first
    assert "value 50" not in first
    assert "?from=50" in first
    assert "Offset 500 does not exist yet: the next offset is 120" in await console.page(
        "/topics/paged/0?from=500"
    )
    assert "expected 'beginning'" in await console.page("/topics/paged/0?from=x", 400)
    assert "There are no messages" in await console.page("/topics/paged/1")


async def test_messages_after_deleted_records(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    create_topic_with_messages(broker, admin, producer, "trimmed", 60)
    admin.delete_records([TopicPartition("trimmed", 0, 55)])[TopicPartition("trimmed", 0)].result(10)
    gone = "was deleted: showing messages from the log start offset 55."
    for query, notes in (
        ("", 0),
        ("?key=key%201", 0),
        ("?from=beginning", 0),
        ("?from=55", 0),
        ("?from=3", 1),
    ):
        page = await console.page(f"/topics/trimmed/0{query}")
        assert ("value 55" in page, "value 54" in page, page.count(gone)) == (True, False, notes), query
    assert "no message at offset 3: the log starts at offset 55" in await console.page(
        "/topics/trimmed/0/3", 404
    )
    assert "Offset 3 was deleted" in await console.page("/topics/trimmed/0?from=3&key=key%201")
    for digits in (str(1 << 63), "9" * 5000):
        result = await console.page(f"/topics/trimmed/0?from={digits}", 400)
        assert f"from {digits[:40]}: expected 'beginning', 'end', an offset" in result
    beyond = await console.page(f"/topics/trimmed/0?from={(1 << 63) - 1}")
    assert "does not exist yet: the next offset is 60" in beyond
    assert "There are no messages from offset 60 on" in beyond


async def test_messages_are_found_by_time(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    create_topic_with_messages(broker, admin, producer, "timed", 10)
    page = await console.page("/topics/timed/0?from=1970-01-01T00:16:40.004")
    assert "value 4" in page
    assert "value 3" not in page


async def test_messages_are_found_by_key(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    create_topic_with_messages(broker, admin, producer, "keyed", 10)
    page = await console.page("/topics/keyed/0?from=beginning&key=key%201")
    assert [f"value {number}" in page for number in range(10)] == [number % 3 == 1 for number in range(10)]
    in_hex = await console.page(f"/topics/keyed/0?from=beginning&form=hex&key={b'key 1'.hex()}")
    assert "value 4" in in_hex
    assert "Partition 0 has no message with this key from offset 0 to 10" in await console.page(
        "/topics/keyed/0?key=none"
    )
    assert "not hexadecimal digits" in await console.page("/topics/keyed/0?form=hex&key=xy", 400)


async def test_search_stops_and_offers_to_continue(
    console: ConsoleClient, admin: AdminClient, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic("long", 1, 1)])["long"].result(10)
    for _ in range(8):
        producer.produce("long", b"x" * 200_000, "other")
        producer.flush(10)
    monkeypatch.setattr("kwire.console.messages.SEARCHED_BYTES", 500_000)
    page = await console.page("/topics/long/0?from=beginning&key=mine")
    assert "Partition 0 has no message with this key from offset 0 to 3" in page
    assert "Continue the search from 3" in page


async def test_produced_message_is_shown(console: ConsoleClient, admin: AdminClient, broker: Broker) -> None:
    admin.create_topics([NewTopic("typed", 2, 1)])["typed"].result(10)
    place = await console.submit(
        "/topics/typed/messages", key="k", value="two\r\nlines", headers="a=1\r\nb=x=y", partition="1"
    )
    assert place == "/topics/typed/1/0?written=1"
    page = await console.page(place)
    assert "The message was written" in page
    (record,) = await broker.aio.records("typed")
    assert (record.partition, record.key, record.value) == (1, b"k", b"two\nlines")
    assert list(record.headers) == [("a", b"1"), ("b", b"x=y")]
    place = await console.submit("/topics/typed/messages", key="00ff", key_form="hex", null="1")
    number = partition_for_key(b"\x00\xff", 2)
    assert place.startswith(f"/topics/typed/{number}/")
    assert [one.value for one in await broker.aio.records("typed") if one.key == b"\x00\xff"] == [None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": "{", "value_form": "json"}, "the value is not JSON"),
        ({"key": "xy", "key_form": "hex"}, "the key is not hexadecimal digits"),
        ({"partition": "9"}, "has partitions 0 to 1, not 9"),
        ({"partition": "-1"}, "expected a whole number"),
        ({"headers": "no equals"}, "expected NAME=TEXT"),
        ({"value_form": "avro"}, "expected text, json, hex"),
    ],
)
async def test_invalid_message_is_an_error(
    console: ConsoleClient, admin: AdminClient, broker: Broker, fields: dict[str, str], message: str
) -> None:
    if "refused" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("refused", 2, 1)])["refused"].result(10)
    response = await console.send("/topics/refused/messages", **fields)
    assert response.status_code == 400
    assert message in response.text.replace("&#39;", "'")
    assert await broker.aio.records("refused") == []


async def test_record_refused_by_the_broker_is_a_bad_request(
    console: ConsoleClient, admin: AdminClient, broker: Broker
) -> None:
    compacted = NewTopic("keyless", 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([compacted])["keyless"].result(10)
    response = await console.send("/topics/keyless/messages", value="x")
    assert response.status_code == 400
    assert "cannot accept message without key" in response.text


async def test_internal_topics_are_read_only(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    from confluent_kafka import Consumer

    create_topic_with_messages(broker, admin, producer, "committed", 1)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("committed", 0, 1)], asynchronous=False)
    consumer.close()
    pages = [await console.page(f"/topics/__consumer_offsets/{number}") for number in range(2)]
    assert any('"type": "OffsetCommitKey", "group": "readers"' in page for page in pages)
    assert "Produce a message" not in await console.page("/topics/__consumer_offsets")
    response = await console.send("/topics/__consumer_offsets/messages", value="x")
    assert response.status_code == 404
    assert "is an internal topic" in response.text


def test_search_checks_the_time_limit_within_a_batch(broker: Broker, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("searched", 1, 1)])["searched"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1000})
    for _ in range(2_500):
        producer.produce("searched", b"x")
    producer.flush(10)
    with CommandClient(ClientSettings(servers_of(broker.bootstrap_servers))) as cluster:
        (batch,) = fetch(cluster, "searched", 0, 0).batches
        assert batch.header.records_count == 2_500
        offsets = [0]
        while offsets[-1] < 2_500:
            found, offset, _, _ = fetch_messages(
                cluster,
                "searched",
                0,
                offsets[-1],
                50,
                wanted=lambda message: False,
                is_out_of_time=lambda: True,
            )
            assert not found
            offsets.append(offset)
    assert offsets == [0, 1_000, 2_000, 2_500]
