"""The newest messages and batches, of any size: the pages hold them all, from the end to the log start.

confluent-kafka consumers read the same partitions as the reference.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from random import Random

import pytest
import trio
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.console.backwards import messages_before
from kwire.console.fetching import find_bounds
from kwire.console.page import ConsoleSettings
from kwire.testing import Broker
from tests.console.conftest import ConsoleClient, run_console

MIB = 1024 * 1024
GAP = 40_000
LARGE_BYTES = MIB - 200
"""Size of a value with which the batch is slightly below max.message.bytes."""


def large_producer(broker: Broker) -> Producer:
    """Return a producer that sends each message in a batch of its own."""
    return Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "message.max.bytes": 2 * MIB,
            "batch.num.messages": 1,
            "linger.ms": 0,
        }
    )


def readable_offsets(broker: Broker, topic: str, partition: int = 0) -> list[int]:
    """Return the offsets of all messages that a read_uncommitted consumer reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "not-used",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            consumer.close()
            return found
        offset = message.offset()
        assert offset is not None
        found.append(offset)


class Walk:
    """The pages from the newest one to the log start, through the link "Earlier"."""

    def __init__(self, console: ConsoleClient, path: str, pattern: str) -> None:
        self._console = console
        self._path = path
        self._pattern = pattern
        self.pages: list[list[int]] = []
        """The offsets on each page, in the order in which the page shows them."""

    async def run(self) -> list[int]:
        """Return the offsets of all pages in the order of the log."""
        path: str | None = self._path
        while path is not None:
            source = await self._console.source(path)
            self.pages.append([int(found) for found in re.findall(self._pattern, source)])
            link = re.search(r'rel="prev" href="/console([^"]*)">Earlier', source)
            path = html.unescape(link[1]) if link else None
            assert len(self.pages) < 500
        return [offset for page in reversed(self.pages) for offset in page]


async def walk_messages(console: ConsoleClient, topic: str, partition: int = 0) -> list[int]:
    """Return the offsets on all pages of the messages of a partition."""
    walk = Walk(console, f"/topics/{topic}/{partition}", rf'href="/console/topics/{topic}/{partition}/(\d+)"')
    offsets = await walk.run()
    assert offsets == sorted(set(offsets)), "each message is on one page, in the order of the log"
    assert all(1 <= len(page) <= 50 for page in walk.pages)
    return offsets


async def test_newest_messages_of_1_mib_are_shown(
    console: ConsoleClient, broker: Broker, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic("mebibytes", 2, 1)])["mebibytes"].result(10)
    producer = large_producer(broker)
    for number in range(60):
        value = b"number %d," % number
        producer.produce("mebibytes", value + b"x" * (LARGE_BYTES - len(value)), partition=number % 2)
    producer.flush(30)
    for partition in range(2):
        page = await console.page(f"/topics/mebibytes/{partition}")
        shown = [number for number in range(60) if f"number {number}," in page]
        assert shown == [number for number in range(60) if number % 2 == partition][-len(shown) :]
        assert len(shown) >= 4, "a page has a few messages, also of 1 MiB"
        assert await walk_messages(console, "mebibytes", partition) == list(range(30))
    log = await console.source("/topics/mebibytes/0/log")
    assert "<title>29 to 29" in log
    batches = Walk(console, "/topics/mebibytes/0/log", r"<title>(\d+) to")
    assert await batches.run() == list(range(30))


async def test_list_of_a_message_ends_with_the_message(
    console: ConsoleClient, broker: Broker, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic("back", 1, 1)])["back"].result(10)
    producer = large_producer(broker)
    for number in range(20):
        producer.produce("back", b"number %d," % number + b"x" * 900_000)
    producer.flush(30)
    source = await console.source("/topics/back/0/12")
    link = re.search(r'href="/console([^"]*)">Back to the list', source)
    assert link is not None
    page = await console.page(html.unescape(link[1]))
    assert "number 12," in page
    assert "number 13," not in page


@pytest.mark.parametrize("seed", range(3))
async def test_pages_from_the_end_show_every_message_once(
    console: ConsoleClient, broker: Broker, admin: AdminClient, seed: int
) -> None:
    """Messages of all sizes, in transactions that are committed, aborted or open, in two partitions."""
    draw = Random(seed)
    topic = f"mixed-{seed}"
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(10)
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    for number in range(12):
        producer = Producer(
            {
                **servers,
                "transactional.id": f"{topic}-{number % 3}",
                "linger.ms": draw.choice([0, 20]),
                "compression.type": draw.choice(["none", "zstd"]),
            }
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        for _ in range(draw.choice([1, 5, 200])):
            size = draw.choice([0, 10, 100, 1_000] if draw.random() < 0.98 else [50_000, 900_000])
            producer.produce(topic, draw.randbytes(size), partition=draw.randrange(2))
        producer.flush(10)
        if number < 11:
            producer.abort_transaction(10) if draw.random() < 0.5 else producer.commit_transaction(10)
    ends = await broker.aio.end_offsets(topic)
    for partition in range(2):
        # The transaction markers are between the messages that consumers read.
        shown = await walk_messages(console, topic, partition)
        assert set(readable_offsets(broker, topic, partition)) <= set(shown)
        assert shown == list(range(ends[partition]))
        newest = await console.page(f"/topics/{topic}/{partition}")
        assert "undecided" in newest
        log = Walk(console, f"/topics/{topic}/{partition}/log", r"<title>(\d+) to \d+,")
        bases = await log.run()
        assert bases == sorted(set(bases))
        assert bases[0] == 0
        assert len(log.pages[0]) <= 60
    producer.abort_transaction(10)


async def test_deleted_records_of_a_batch_are_not_shown(
    console: ConsoleClient, broker: Broker, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic("cut", 1, 1)])["cut"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 500})
    for number in range(30):
        producer.produce("cut", b"number %d," % number)
    producer.flush(10)
    one = TopicPartition("cut", 0, 12)
    admin.delete_records([one])[one].result(10)
    page = await console.page("/topics/cut/0")
    assert [f"number {number}," in page for number in range(30)] == [number >= 12 for number in range(30)]
    assert "Offset 9 was deleted" in await console.page("/topics/cut/0?before=10")
    assert "number 12," in await console.page("/topics/cut/0?before=10")
    assert "number 19," in await console.page("/topics/cut/0?before=20")
    assert "number 20," not in await console.page("/topics/cut/0?before=20")
    assert "number 29," in await console.page("/topics/cut/0?before=5000")
    await console.page("/topics/cut/0?before=-1", 400)


@pytest.fixture(scope="module")
def compacting() -> Iterator[Broker]:
    """Run a broker whose cleaner runs often."""
    with Broker({"log.cleaner.backoff.ms": 200, "log.retention.hours": -1}) as running:
        yield running


async def test_newest_messages_behind_compacted_gaps_are_shown(compacting: Broker) -> None:
    """The last messages are gaps of thousands of offsets away from the end and from each other."""
    servers = {"bootstrap.servers": compacting.bootstrap_servers}
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(MIB),
        "min.cleanable.dirty.ratio": "0",
    }
    admin = AdminClient({**servers})
    admin.create_topics([NewTopic("gaps", 1, 1, config=config)])["gaps"].result(10)
    producer = Producer({**servers, "linger.ms": 50})
    kept: list[int] = []
    for part in range(3):
        kept.append(part * (GAP + 1))
        producer.produce("gaps", f"kept {part}", f"kept-{part}")
        for number in range(GAP):
            producer.produce("gaps", bytes(100), f"{number % 10}")
            producer.poll(0)
        producer.flush(30)
    with trio.fail_after(60):
        while (left := readable_offsets(compacting, "gaps"))[:3] != kept:
            await trio.sleep(0.5)
    async with run_console(
        ConsoleSettings(compacting.bootstrap_servers, 1, (str(compacting.log_dir),), may_write=False)
    ) as console:
        with CommandClient(ClientSettings(servers_of(compacting.bootstrap_servers))) as cluster:
            bounds = find_bounds(cluster, "gaps", 0)
            for before in (left[3], left[3] - 10, kept[2] + 1, kept[2], kept[1] + 1):
                expected = [offset for offset in left if offset < before]
                found = messages_before(cluster, "gaps", 0, before, bounds, 50)
                assert [message.record.offset for message in found.messages] == expected
        page = await console.page(f"/topics/gaps/0?before={left[3]}")
        assert [f"kept {number}" in page for number in range(3)] == [True] * 3
        for part, offset in enumerate(kept):
            shown = await console.page(f"/topics/gaps/key?key=kept-{part}")
            assert f"0 {offset:,} " in shown
            assert f"kept {part}" in shown
            assert "Searched the only partition." in shown
        newest = await console.source("/topics/gaps/0")
        offsets = re.findall(r'href="/console/topics/gaps/0/(\d+)"', newest)
        assert [int(offset) for offset in offsets] == left[-50:]
