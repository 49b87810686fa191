"""The search for a key in all partitions of a topic."""

from __future__ import annotations

import html
import re
from typing import NamedTuple

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kwire.cli.records.partitioner import partition_for_key
from kwire.console.page import ConsoleSettings
from kwire.testing import Broker
from kwire.testing.cluster import Cluster
from tests.console.conftest import ConsoleClient, run_console, text_of


class FoundKeys(NamedTuple):
    """The pages of a search, from the first one to the last."""

    pages: list[str]
    matches: list[tuple[int, int]]
    """Partition and offset of each match."""


async def search(console: ConsoleClient, topic: str, key: str = "mine", form: str = "text") -> FoundKeys:
    """Search for a key, and continue until the search has ended."""
    path = f"/topics/{topic}/key?form={form}&key={key}"
    pages: list[str] = []
    matches: list[tuple[int, int]] = []
    while True:
        source = await console.source(path)
        pages.append(text_of(source))
        found = re.findall(rf'href="/console/topics/{topic}/(\d+)/(\d+)"', source)
        shown = re.findall(r'class="n partition"><a [^>]*>(\d+)<', source)
        assert shown == [partition for partition, _ in found], "each match has its partition"
        matches += [(int(partition), int(offset)) for partition, offset in found]
        link = re.search(r'rel="next" href="/console([^"]*)">Continue the search', source)
        if link is None:
            return FoundKeys(pages, matches)
        path = html.unescape(link[1])
        assert len(pages) < 500, path


async def expected(broker: Broker, topic: str, key: bytes = b"mine") -> list[tuple[int, int]]:
    return sorted((one.partition, one.offset) for one in await broker.aio.records(topic) if one.key == key)


async def test_key_is_found_in_every_partition(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    """A custom partitioner writes a key to partitions that the default one does not choose."""
    admin.create_topics([NewTopic("custom", 5, 1)])["custom"].result(10)
    for number in range(40):
        producer.produce("custom", f"value {number}", "mine" if number % 7 else "other", partition=number % 5)
    producer.produce("custom", "text", b"\x00\xff", partition=3)
    producer.flush(10)
    found = await search(console, "custom")
    assert sorted(found.matches) == await expected(broker, "custom")
    assert {partition for partition, _ in found.matches} == set(range(5))
    assert len(found.pages) == 1
    assert "Searched all 5 partitions." in found.pages[0]
    first = partition_for_key(b"mine", 5)
    assert found.matches[0][0] == first, "the default partitioner's choice comes first"
    assert (await search(console, "custom", "00ff", "hex")).matches == [(3, 8)]
    (page,) = (await search(console, "custom", "none")).pages
    assert "There is no message with this key in any partition." in page
    assert "the key is missing" in await console.page("/topics/custom/key?form=text&key=", 400)
    assert "only" not in await console.page("/topics/custom/key?form=text&key=a&partition=9", 404)
    other = next(partition for partition in range(5) if partition != first)
    in_one = await console.source(f"/topics/custom/{other}?key=none")
    assert f"Partition {other} has no message with this key" in text_of(in_one)
    assert 'href="/console/topics/custom/key?form=text&amp;key=none">Search all partitions' in in_one


async def test_key_is_found_after_the_number_of_partitions_has_grown(
    console: ConsoleClient, broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    admin.create_topics([NewTopic("grown", 2, 1)])["grown"].result(10)
    key = next(
        key
        for key in map(str, range(100))
        if partition_for_key(key.encode(), 2) != partition_for_key(key.encode(), 7)
    )
    producer.produce("grown", "before", key, partition=partition_for_key(key.encode(), 2))
    producer.flush(10)
    admin.create_partitions([NewPartitions("grown", 7)])["grown"].result(10)
    with trio.fail_after(10):
        while "Searched all 7 partitions" not in (await search(console, "grown", key)).pages[-1]:
            await trio.sleep(0.1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})  # knows the new partitions
    producer.produce("grown", "after", key, partition=partition_for_key(key.encode(), 7))
    producer.flush(10)
    found = await search(console, "grown", key)
    assert sorted(found.matches) == await expected(broker, "grown", key.encode())
    assert len(found.matches) == 2


@pytest.mark.parametrize("local", [True, False])
async def test_each_page_is_bounded_and_the_search_continues(
    broker: Broker, admin: AdminClient, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """The matches are the same if a page searches few bytes, few partitions or for no time at all."""
    topic = f"bounded-{local}"
    admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in range(600):
        key = "mine" if number % 9 == 0 else "other"
        producer.produce(topic, bytes(10_000), key, partition=number * number % 5)
    producer.flush(30)
    settings = ConsoleSettings(
        broker.bootstrap_servers, 1, (str(broker.log_dir),) if local else (), may_write=False
    )
    async with run_console(settings) as console:
        all_matches = await expected(broker, topic)
        assert len(all_matches) > 50, "several pages, since a page has 50 messages"
        plain = await search(console, topic)
        assert sorted(plain.matches) == all_matches
        assert len(plain.pages) == 2
        for name, value, least in (
            ("topic_search.SEARCHED_BYTES", 200_000, 8),
            ("topic_search.MAX_PARTITIONS", 1, 6),
            ("topic_search.PAGE_SIZE", 7, 9),
            ("key_search.SEARCH_SECONDS", -1.0, 10),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(f"kwire.console.{name}", value)
                found = await search(console, topic)
            assert found.matches == plain.matches, name
            assert len(found.pages) >= least, name
            searched = [int(one) for page in found.pages for one in re.findall(r"Searched (\d+) of 6", page)]
            assert searched == sorted(searched)
            assert len(searched) == len(found.pages) - 1
            assert all("any partition" not in page for page in found.pages)


async def test_search_ends_while_producers_write(
    console: ConsoleClient, admin: AdminClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers that write more than a page searches do not keep the search in their partition."""
    admin.create_topics([NewTopic("busy", 2, 1)])["busy"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    monkeypatch.setattr("kwire.console.topic_search.SEARCHED_BYTES", 300_000)
    busy = partition_for_key(b"mine", 2)
    producer.produce("busy", "x", "mine", partition=1 - busy)
    path, pages = "/topics/busy/key?form=text&key=mine", 0
    while path:
        for _ in range(10):
            producer.produce("busy", bytes(100_000), "other", partition=busy)
        producer.flush(10)
        source = await console.source(path)
        link = re.search(r'rel="next" href="/console([^"]*)">Continue', source)
        path = html.unescape(link[1]) if link else ""
        pages += 1
        assert pages < 20
    assert f"/console/topics/busy/{1 - busy}/0" in source


async def test_unreadable_batch_hides_no_other_match(
    console: ConsoleClient, broker: Broker, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic("partly", 3, 1)])["partly"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd"})
    for value in (b"small", bytes(900_000), b"small"):
        for partition in range(3):
            producer.produce("partly", value, "mine", partition=partition)
            producer.flush(10)
    monkeypatch.setattr("kwire.console.fetching.MAX_BATCH_BYTES", 100_000)
    monkeypatch.setattr("kwire.console.local_log.MAX_BATCH_BYTES", 100_000)
    found = await search(console, "partly")
    assert sorted(found.matches) == [(partition, offset) for partition in range(3) for offset in (0, 2)]
    for partition in range(3):
        assert (
            f"Partition {partition} was not searched completely: the batch at offset 1 cannot be read"
            in " ".join(found.pages)
        )
    # The page of one partition shows the messages before the batch, and then continues at the batch.
    page = await console.source("/topics/partly/0?from=beginning")
    assert "?from=1" in page
    assert "the batch at offset 1 cannot be read" in await console.page("/topics/partly/0?from=1", 404)
    newest = await console.source("/topics/partly/0")
    assert re.findall(r'/console/topics/partly/0/(\d+)"', newest) == ["2"]


async def test_transactions_and_markers_in_the_search(
    console: ConsoleClient, broker: Broker, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic("settled", 3, 1)])["settled"].result(10)
    for commits in (True, False):
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "settles"})
        producer.init_transactions(10)
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("settled", "x", "mine", partition=partition)
        producer.flush(10)
        producer.commit_transaction(10) if commits else producer.abort_transaction(10)
    found = await search(console, "settled")
    assert sorted(found.matches) == [(partition, offset) for partition in range(3) for offset in (0, 2)]
    assert found.pages[0].count(" committed") == 3
    assert found.pages[0].count(" aborted") == 3


async def test_partition_without_a_leader_is_named_and_the_others_are_searched() -> None:
    async with Cluster(3) as cluster:
        topic = await cluster.aio.new_topic("alone", partitions=6, replication_factor=1)
        for partition in range(6):
            await cluster.aio.produce(topic, "x", key="mine", partition=partition)
        async with run_console(ConsoleSettings(cluster.bootstrap_servers, 1, (), may_write=False)) as console:
            whole = await search(console, topic)
            assert len(whole.matches) == 6
            leaders = {
                partition: int(leader)
                for partition, leader in re.findall(
                    r"(?:^| )(\d) 0 1 .*?(\d) epoch", await console.page(f"/topics/{topic}")
                )
            }
            assert set(leaders.values()) == {1, 2, 3}
            await cluster.brokers[2].aio.crash()
            found = await search(console, topic)
        lost = {int(partition) for partition, leader in leaders.items() if leader == 2}
        assert lost
        assert {partition for partition, _ in found.matches} == set(range(6)) - lost
        for partition in lost:
            assert f"Partition {partition} was not searched completely" in " ".join(found.pages)
        assert all("in any partition" not in page for page in found.pages)
