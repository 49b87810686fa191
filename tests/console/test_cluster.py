"""The pages of configurations, the cluster and the log of a partition."""

from __future__ import annotations

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.console.drawing import WIDTH, Segment, detail, overview
from kwire.console.fetching import Batch, BatchStatus, LogOffsets
from kwire.console.page import ConsoleSettings
from kwire.console.rates import Rates
from kwire.testing import Broker
from kwire.testing.cluster import Cluster
from kwire.wire.batch import build, read_header
from tests.console.conftest import ConsoleClient, run_console, text_of


async def test_configurations_have_source_and_documentation(
    console: ConsoleClient, admin: AdminClient, broker: Broker
) -> None:
    admin.create_topics([NewTopic("kept", 1, 1, config={"retention.ms": "7000000"})])["kept"].result(10)
    assert "kept" in await console.page("/configs")
    page = await console.page("/configs?kind=topic&name=kept")
    assert "7000000 topic" in page
    assert "segment.bytes" in page
    only = await console.page("/configs?kind=topic&name=kept&changed=1")
    assert "segment.bytes" not in only
    assert "cleanup.policy contains delete" in only
    of_broker = await console.page("/configs?kind=broker&name=1&q=log.dirs")
    assert "log.dirs" in of_broker
    assert "read-only" in of_broker
    for path, status in (
        ("kind=topic&name=none", 404),
        ("kind=broker&name=7", 404),
        ("kind=broker&name=x", 400),
        ("kind=nothing&name=x", 400),
    ):
        await console.page(f"/configs?{path}", status)


async def test_cluster_page(console: ConsoleClient, broker: Broker) -> None:
    page = await console.page("/cluster")
    assert f"1 {broker.bootstrap_servers}" in page
    assert "Active controller Node 1" in page
    assert "metadata.version" in page
    assert "1 leader" in page


async def test_log_page_of_several_segments(
    console: ConsoleClient, admin: AdminClient, producer: Producer
) -> None:
    config = {"segment.bytes": "1048576"}
    admin.create_topics([NewTopic("segments", 1, 1, config=config)])["segments"].result(10)
    for number in range(5):
        producer.produce("segments", bytes(900_000), f"{number}")
        producer.flush(10)
    source = await console.source("/topics/segments/0/log")
    assert source.count('class="segment closed"') == 4
    assert source.count('class="segment active"') == 1
    assert source.count('class="mark segment"') == source.count('class="batch plain"')
    page = text_of(source)
    assert "segment 4" in page
    assert "epoch 0" in page
    assert "high watermark 5" in page
    first = await console.source("/topics/segments/0/log?from=beginning")
    assert first.count('class="batch plain"') == 1
    assert "?from=1" in first
    assert "offset 9 is out of range" in await console.page("/topics/segments/0/log?from=9", 400)


async def test_log_page_of_an_empty_log(console: ConsoleClient, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("nothing", 1, 1)])["nothing"].result(10)
    assert "There are no batches" in await console.page("/topics/nothing/0/log")


def batch(offset: int, records: int = 1, epoch: int = 0, producer: int = -1) -> Batch:
    new = [(0, None, b"x", ())] * records
    data = build(new, base_offset=offset, leader_epoch=epoch, producer_id=producer)
    return Batch(read_header(data), BatchStatus.PLAIN, data, 0)


def test_log_overview_is_to_scale() -> None:
    segments = [Segment(0, 40, 1), Segment(40, 100, 1)]
    drawn = overview(LogOffsets(20, 90, 100), segments, [(0, 0), (3, 50)], [batch(80, 10)])
    assert [(bar.x, bar.width) for bar in drawn.segments] == [(0, 384), (384, 576)]
    assert [(bar.x, bar.label) for bar in drawn.epochs] == [(0, "epoch 0"), (480, "epoch 3")]
    assert [line.x for line in drawn.lines] == [192, 864, 960]
    assert drawn.window == (768, 96)


def test_log_overview_of_an_empty_log() -> None:
    assert overview(LogOffsets(5, 5, 5), [], [], []).lines[0].x == 0


@pytest.mark.parametrize("count", [1, 60])
def test_batches_wrap_within_the_width(count: int) -> None:
    batches = [batch(100 * number, 100, epoch=number // 20, producer=number % 3) for number in range(count)]
    drawn = detail(
        LogOffsets(0, 10**6, 10**6), [Segment(0, 10**6, 1)], batches, [""] * count, {0: 0, 1: 1, 2: 2}
    )
    assert len(drawn.boxes) == count
    assert all(box.x >= 0 and box.x + box.width <= WIDTH for box in drawn.boxes)
    assert all(box.y + 46 <= drawn.height for box in drawn.boxes)
    assert sum("epoch" in mark.label for mark in drawn.marks) == (count + 19) // 20
    assert not any(
        one.y == other.y and one.x < other.x + other.width and other.x < one.x + one.width
        for at, one in enumerate(drawn.boxes)
        for other in drawn.boxes[:at]
    )


def test_rates_are_differences_between_samples() -> None:
    now = [100.0]
    rates = Rates(lambda: now[0])
    assert rates.update({("a", 0): 10}) == {}
    now[0] = 100.5
    assert rates.update({("a", 0): 11}) == {}
    now[0] = 104.0
    assert rates.update({("a", 0): 50, ("b", 0): 7}) == {("a", 0): 10.0}
    now[0] = 106.0
    assert rates.update({("a", 0): 5, ("b", 0): 9}) == {("a", 0): 0.0, ("b", 0): 1.0}
    now[0] = 1000.0
    assert rates.update({("a", 0): 50}) == {}


async def test_log_page_of_a_remote_replica_has_no_segments(
    broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    admin.create_topics([NewTopic("elsewhere", 1, 1)])["elsewhere"].result(10)
    producer.produce("elsewhere", "x", partition=0)
    producer.flush(10)
    async with run_console(
        ConsoleSettings(broker.bootstrap_servers, 7, ("/none",), may_write=False)
    ) as console:
        source = await console.source("/topics/elsewhere/0/log")
    assert "Broker 7 has no replica of this partition" in text_of(source)
    assert "Broker 1 has one" in text_of(source)
    assert 'class="segment' not in source
    assert source.count('class="batch plain"') == 1


async def test_pages_work_with_a_stopped_broker() -> None:
    async with Cluster(3) as cluster:
        topic = await cluster.aio.new_topic("left", partitions=3)
        for partition in range(3):
            await cluster.aio.produce(topic, "x", partition=partition)
        place = ConsoleSettings(cluster.bootstrap_servers, 1, (), may_write=False)
        async with run_console(place) as console:
            await cluster.brokers[2].aio.crash()
            before = await console.page(f"/topics/{topic}")
            assert "2 not in sync" in before or "Broker 2 did not respond" in before
            with trio.fail_after(30):
                while "fenced" not in (page := await console.page("/cluster")):
                    await trio.sleep(0.2)
            assert "no response" in page
            with trio.fail_after(30):  # until its partitions have new leaders
                while f"{topic} 3 3 3 " not in (listed := await console.page("/")):
                    assert f"{topic} 3 3 " in listed
                    await trio.sleep(0.2)
            assert "or more" not in listed
            assert "3 under-replicated" in listed
