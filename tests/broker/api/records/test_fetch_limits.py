"""Size limits of a Fetch response with several partitions. KIP-74, KIP-541 (fetch.max.bytes)."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.node_harness import FETCH_VERSION, NodeHarness

BATCH_BYTES = 73
"""The size of a batch that `NodeHarness.produce` sends."""
MEBIBYTE = 1 << 20
LONG_MS = 60_000
MIN_FETCH_MAX_BYTES = 1024
"""The smallest valid fetch.max.bytes."""

Batches = tuple[int, ...]
"""The number of batches of each partition."""


def harness_with(batches: Batches, **settings: str) -> NodeHarness:
    """Return a broker with topic a and these numbers of batches in its partitions."""
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
    partition_bytes: int = MEBIBYTE,
    max_bytes: int = MEBIBYTE,
    **fields: Any,
) -> FetchRequest:
    """Return a fetch of all partitions in order, from this offset."""
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_bytes)
        for index in range(len(harness.node.image.topics["a"].partitions))
    ]
    return FetchRequest(
        **fields, max_bytes=max_bytes, topics=[FetchTopic(topic="a", partitions=partitions)], session_epoch=-1
    )


def sizes(response: Any) -> list[int]:
    return [len(one.records or b"") for topic in response.responses for one in topic.partitions]


@pytest.mark.parametrize(
    ("batches", "max_bytes", "expected"),
    [
        ((3, 3, 3), 9 * BATCH_BYTES, [3 * BATCH_BYTES, 3 * BATCH_BYTES, 3 * BATCH_BYTES]),
        ((3, 3, 3), 4 * BATCH_BYTES, [3 * BATCH_BYTES, BATCH_BYTES, 0]),
        ((3, 3, 3), 5 * BATCH_BYTES + 1, [3 * BATCH_BYTES, 2 * BATCH_BYTES + 1, 0]),
        ((3, 3, 3), 3 * BATCH_BYTES, [3 * BATCH_BYTES, 0, 0]),
        ((1, 0, 1, 1), 2 * BATCH_BYTES, [BATCH_BYTES, 0, BATCH_BYTES, 0]),
    ],
)
def test_max_bytes_limits_all_partitions_together(
    batches: Batches, max_bytes: int, expected: list[int]
) -> None:
    """The bytes of the first partitions count against the limit of the others."""
    harness = harness_with(batches)
    assert sizes(harness.call(FETCH_VERSION, fetch(harness, max_bytes=max_bytes))) == expected


@pytest.mark.parametrize(
    ("batches", "limits", "expected"),
    [
        ((3, 3, 3), {"max_bytes": 1}, [BATCH_BYTES, 0, 0]),
        ((0, 3, 3), {"max_bytes": 1}, [0, BATCH_BYTES, 0]),
        ((3, 3, 3), {"partition_bytes": 1}, [BATCH_BYTES, 0, 0]),
        ((0, 0, 3), {"partition_bytes": 1}, [0, 0, BATCH_BYTES]),
        # The first batch of the second partition is a byte larger than the rest, so it is omitted.
        ((1, 1, 0), {"max_bytes": 2 * BATCH_BYTES - 1}, [BATCH_BYTES, 0, 0]),
    ],
)
def test_only_the_first_batch_may_exceed_the_limits(
    batches: Batches, limits: dict[str, int], expected: list[int]
) -> None:
    """One batch beyond the limits lets the consumer progress; the other partitions return none."""
    harness = harness_with(batches)
    assert sizes(harness.call(FETCH_VERSION, fetch(harness, **limits))) == expected


@pytest.mark.parametrize(
    ("requested_bytes", "expected"),
    [
        (MEBIBYTE, [10 * BATCH_BYTES, MIN_FETCH_MAX_BYTES - 10 * BATCH_BYTES]),
        (MIN_FETCH_MAX_BYTES + 1, [10 * BATCH_BYTES, MIN_FETCH_MAX_BYTES - 10 * BATCH_BYTES]),
        (MIN_FETCH_MAX_BYTES - 1, [10 * BATCH_BYTES, MIN_FETCH_MAX_BYTES - 1 - 10 * BATCH_BYTES]),
    ],
)
def test_fetch_max_bytes_of_the_broker_limits_the_response(requested_bytes: int, expected: list[int]) -> None:
    """A larger limit in the request is no error."""
    harness = harness_with((10, 10), **{"fetch.max.bytes": str(MIN_FETCH_MAX_BYTES)})
    assert sizes(harness.call(FETCH_VERSION, fetch(harness, max_bytes=requested_bytes))) == expected


@pytest.mark.parametrize(
    ("max_bytes", "expected_bytes"),
    [
        (2 * BATCH_BYTES, 2 * BATCH_BYTES),
        (2 * BATCH_BYTES + 1, 2 * BATCH_BYTES + 1),
        (1, BATCH_BYTES),
        (MEBIBYTE, MIN_FETCH_MAX_BYTES),
    ],
    ids=["its own limit", "within a batch", "less than a batch", "the broker's limit"],
)
def test_min_bytes_above_the_limits_does_not_delay_a_full_response(
    max_bytes: int, expected_bytes: int
) -> None:
    """The response returns at once when it is full, although min_bytes is larger."""
    harness = harness_with((20,), **{"fetch.max.bytes": str(MIN_FETCH_MAX_BYTES)})
    request = fetch(harness, max_bytes=max_bytes, min_bytes=2 * MEBIBYTE, max_wait_ms=LONG_MS)
    response = harness.call(FETCH_VERSION, request)
    assert response is not None, "the fetch waits for bytes that would never fit"
    assert sizes(response) == [expected_bytes]


def test_min_bytes_above_max_bytes_waits_until_the_response_is_full() -> None:
    """The append that fills the response ends the wait, not an earlier one and not only the timeout."""
    harness = harness_with((1, 0))
    client = harness.connect()
    client.send(
        FETCH_VERSION, fetch(harness, max_bytes=3 * BATCH_BYTES, min_bytes=MEBIBYTE, max_wait_ms=LONG_MS)
    )
    for index in (1, 0):
        assert client.receive(FETCH_VERSION, FetchRequest) is None
        harness.produce("a", index)
    assert sizes(client.receive(FETCH_VERSION, FetchRequest)) == [2 * BATCH_BYTES, BATCH_BYTES]
