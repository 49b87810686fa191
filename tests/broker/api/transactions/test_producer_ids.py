"""InitProducerId without a transactional id: ids come in blocks, for which nobody waits. KIP-730."""

from __future__ import annotations

from itertools import count

import pytest

from kwire.broker.node.producer_id_manager import RETRY_BACKOFF_MS
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from tests.broker.api.groups.client import Client

BLOCK = 1_000
PREFETCHED_AT = 900


def ask(client: Client) -> tuple[int, int, int]:
    answer = client.call(4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1))
    return answer.error_code, answer.producer_id, answer.producer_epoch


def test_the_first_producer_asks_again_and_then_no_other_has_to() -> None:
    client = Client()
    client.host.advance(60_000)  # however long the broker has been up
    assert ask(client) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    assert [ask(client) for _ in range(2 * BLOCK)] == [(0, given, 0) for given in range(2 * BLOCK)]


def test_the_next_block_is_fetched_when_nine_tenths_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    ask(client)
    metadata = client.node.controller
    blocks = count(1)
    submit = metadata.submit
    monkeypatch.setattr(metadata, "submit", lambda *command: (next(blocks), submit(*command)))
    for given in range(BLOCK):
        assert ask(client) == (0, given, 0)
        assert next(blocks) == (given + 1 if given < PREFETCHED_AT else given + 2)


def test_who_comes_before_the_next_block_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    ask(client)
    submitted = []
    submit = client.node.controller.submit
    monkeypatch.setattr(client.node.controller, "submit", lambda *command: submitted.append(command))
    assert [ask(client)[0] for _ in range(BLOCK + 3)] == [0] * BLOCK + [14] * 3
    assert len(submitted) == 1
    answered = submitted[0][1]
    answered(ApiError(ErrorCode.STALE_BROKER_EPOCH))
    assert ask(client)[0] == 14
    assert len(submitted) == 1  # the controller is left alone for a moment
    client.host.advance(RETRY_BACKOFF_MS)
    assert ask(client)[0] == 14
    assert len(submitted) == 2
    submit(*submitted[1])
    client.host.run_pending()
    assert ask(client) == (0, BLOCK, 0)
