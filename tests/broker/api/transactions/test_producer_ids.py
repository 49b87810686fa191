"""InitProducerId without a transactional id: the broker fetches ids in blocks, ahead of need. KIP-730."""

from __future__ import annotations

from itertools import count

import pytest

from kwire.broker.node.producer_id_manager import RETRY_BACKOFF_MS
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from tests.broker.api.groups.client import Client

BLOCK = 1_000
PREFETCHED_AT = 900


def init_producer_id(client: Client) -> tuple[int, int, int]:
    response = client.call(4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1))
    return response.error_code, response.producer_id, response.producer_epoch


def test_only_the_first_producer_has_to_retry() -> None:
    client = Client()
    client.host.advance(60_000)  # however long the broker has been up
    assert init_producer_id(client) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    assert [init_producer_id(client) for _ in range(2 * BLOCK)] == [
        (0, producer_id, 0) for producer_id in range(2 * BLOCK)
    ]


def test_the_next_block_is_requested_at_90_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    init_producer_id(client)
    metadata = client.node.controller
    blocks = count(1)
    submit = metadata.submit
    monkeypatch.setattr(metadata, "submit", lambda *command: (next(blocks), submit(*command)))
    for producer_id in range(BLOCK):
        assert init_producer_id(client) == (0, producer_id, 0)
        assert next(blocks) == (producer_id + 1 if producer_id < PREFETCHED_AT else producer_id + 2)


def test_producers_retry_until_the_next_block_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    init_producer_id(client)
    submitted = []
    submit = client.node.controller.submit
    monkeypatch.setattr(client.node.controller, "submit", lambda *command: submitted.append(command))
    assert [init_producer_id(client)[0] for _ in range(BLOCK + 3)] == [0] * BLOCK + [14] * 3
    assert len(submitted) == 1
    on_done = submitted[0][1]
    on_done(ApiError(ErrorCode.STALE_BROKER_EPOCH))
    assert init_producer_id(client)[0] == 14
    assert len(submitted) == 1  # the broker waits for the retry backoff
    client.host.advance(RETRY_BACKOFF_MS)
    assert init_producer_id(client)[0] == 14
    assert len(submitted) == 2
    submit(*submitted[1])
    client.host.run_pending()
    assert init_producer_id(client) == (0, BLOCK, 0)
