"""What a Fetch of several partitions may hold, and when that is enough. KIP-74, KIP-541 (fetch.max.bytes)."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.node_harness import FETCH_VERSION, NodeHarness

ONE = 73
"""Bytes of a batch as `NodeHarness.produce` sends it."""
MANY = 1 << 20
LONG_MS = 60_000
LEAST_MAX_BYTES = 1024
"""The least that fetch.max.bytes may be."""

Batches = tuple[int, ...]
"""How many there are in each partition."""


def harness_with(batches: Batches, **settings: str) -> NodeHarness:
    """A broker with so many batches in each partition of the topic a."""
    harness = NodeHarness(None, **settings)
    harness.create("a", partitions=len(batches))
    for index, count in enumerate(batches):
        for _ in range(count):
            harness.produce("a", index)
    return harness


def fetch(
    harness: NodeHarness,
    *,
    offset: int = 0,
    partition_bytes: int = MANY,
    max_bytes: int = MANY,
    **fields: Any,
) -> FetchRequest:
    """A fetch of all partitions in their order, from this offset on."""
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_bytes)
        for index in range(len(harness.node.image.topics["a"].partitions))
    ]
    return FetchRequest(
        **fields, max_bytes=max_bytes, topics=[FetchTopic(topic="a", partitions=partitions)], session_epoch=-1
    )


def sizes(answer: Any) -> list[int]:
    return [len(one.records or b"") for topic in answer.responses for one in topic.partitions]


@pytest.mark.parametrize(
    ("batches", "max_bytes", "expected"),
    [
        ((3, 3, 3), 9 * ONE, [3 * ONE, 3 * ONE, 3 * ONE]),
        ((3, 3, 3), 4 * ONE, [3 * ONE, ONE, 0]),
        ((3, 3, 3), 5 * ONE + 1, [3 * ONE, 2 * ONE + 1, 0]),
        ((3, 3, 3), 3 * ONE, [3 * ONE, 0, 0]),
        ((1, 0, 1, 1), 2 * ONE, [ONE, 0, ONE, 0]),
    ],
)
def test_max_bytes_is_what_all_partitions_of_an_answer_hold_together(
    batches: Batches, max_bytes: int, expected: list[int]
) -> None:
    """What the first partitions take is not there for the others: an answer is no longer than asked for."""
    harness = harness_with(batches)
    assert sizes(harness.call(FETCH_VERSION, fetch(harness, max_bytes=max_bytes))) == expected


@pytest.mark.parametrize(
    ("batches", "limits", "expected"),
    [
        ((3, 3, 3), {"max_bytes": 1}, [ONE, 0, 0]),
        ((0, 3, 3), {"max_bytes": 1}, [0, ONE, 0]),
        ((3, 3, 3), {"partition_bytes": 1}, [ONE, 0, 0]),
        ((0, 0, 3), {"partition_bytes": 1}, [0, 0, ONE]),
        # The second one's first batch is a byte too long for what is left, and comes not at all.
        ((1, 1, 0), {"max_bytes": 2 * ONE - 1}, [ONE, 0, 0]),
    ],
)
def test_only_the_first_batch_of_an_answer_comes_whatever_the_limits_are(
    batches: Batches, limits: dict[str, int], expected: list[int]
) -> None:
    """A consumer gets on whatever its limits are, by one batch that is too large, and not by one of each."""
    harness = harness_with(batches)
    assert sizes(harness.call(FETCH_VERSION, fetch(harness, **limits))) == expected


@pytest.mark.parametrize(
    ("asked_bytes", "expected"),
    [
        (MANY, [10 * ONE, LEAST_MAX_BYTES - 10 * ONE]),
        (LEAST_MAX_BYTES + 1, [10 * ONE, LEAST_MAX_BYTES - 10 * ONE]),
        (LEAST_MAX_BYTES - 1, [10 * ONE, LEAST_MAX_BYTES - 1 - 10 * ONE]),
    ],
)
def test_an_answer_holds_no_more_than_the_broker_s_fetch_max_bytes(
    asked_bytes: int, expected: list[int]
) -> None:
    """Whoever asks for more gets as much as the broker gives, and no error."""
    harness = harness_with((10, 10), **{"fetch.max.bytes": str(LEAST_MAX_BYTES)})
    assert sizes(harness.call(FETCH_VERSION, fetch(harness, max_bytes=asked_bytes))) == expected


@pytest.mark.parametrize(
    ("max_bytes", "held_bytes"),
    [(2 * ONE, 2 * ONE), (2 * ONE + 1, 2 * ONE + 1), (1, ONE), (MANY, LEAST_MAX_BYTES)],
    ids=["its own limit", "within a batch", "less than a batch", "the broker's limit"],
)
def test_who_asks_for_more_than_an_answer_may_hold_does_not_wait_for_it(
    max_bytes: int, held_bytes: int
) -> None:
    """It is answered at once where there is as much as an answer holds, though min_bytes is more."""
    harness = harness_with((20,), **{"fetch.max.bytes": str(LEAST_MAX_BYTES)})
    request = fetch(harness, max_bytes=max_bytes, min_bytes=2 * MANY, max_wait_ms=LONG_MS)
    answer = harness.call(FETCH_VERSION, request)
    assert answer is not None, "it waits for what would never fit"
    assert sizes(answer) == [held_bytes]


def test_who_waits_for_more_than_an_answer_may_hold_waits_for_as_much_as_it_may() -> None:
    """The wait ends with the record that fills an answer, not before, and not only with its time."""
    harness = harness_with((1, 0))
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(harness, max_bytes=3 * ONE, min_bytes=MANY, max_wait_ms=LONG_MS))
    for index in (1, 0):
        assert client.receive(FETCH_VERSION, FetchRequest) is None
        harness.produce("a", index)
    assert sizes(client.receive(FETCH_VERSION, FetchRequest)) == [2 * ONE, ONE]
