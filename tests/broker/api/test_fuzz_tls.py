"""Mutated frames have the same outcome with TLS as without, also if records of TLS divide the frames."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.broker.api.frames import SERVED_VERSIONS, mutate, valid_frame
from tests.broker.api.fuzz import random_mutations
from tests.broker.api.fuzz_server import FuzzServer
from tests.broker.net.test_tls_transport_layer import VERSIONS, client_context, server_context

CONNECTIONS = 300
RECORD_BYTES = (1, 5, 100, 1 << 20)
MIN_CLOSED = 20
"""The least number of connections that frames end, so that both outcomes are compared."""


@pytest.fixture
def plain() -> Iterator[FuzzServer]:
    server = FuzzServer(None, None)
    yield server
    server.close()


@pytest.fixture(params=VERSIONS)
def encrypted(request: pytest.FixtureRequest) -> Iterator[FuzzServer]:
    server = FuzzServer(server_context(request.param), client_context())
    yield server
    server.close()


def test_frames_have_the_same_outcome_with_tls(plain: FuzzServer, encrypted: FuzzServer) -> None:
    rng = random.Random(1)
    topic_ids = plain.harness.topic_ids
    outcomes: Counter[bool] = Counter()
    for number in range(CONNECTIONS):
        frames = []
        for _ in range(rng.randint(1, 4)):
            key, version = rng.choice(SERVED_VERSIONS)
            chosen = valid_frame(key, version, rng.randrange(8), topic_ids)
            if rng.random() < 0.7:
                chosen = mutate(chosen, random_mutations(rng), reseal=rng.random() < 0.7)
            frames.append(chosen.frame)
        record_bytes = rng.choice(RECORD_BYTES)
        advance_ms = rng.choice((0, 600))
        verdicts = [server.send(frames, record_bytes, advance_ms=advance_ms) for server in (plain, encrypted)]
        assert verdicts[0] == verdicts[1], f"connection {number}: {[frame.hex() for frame in frames]}"
        outcomes[verdicts[0].is_closed] += 1
        for server in (plain, encrypted):
            server.harness.check_control_topic()
    assert min(outcomes[True], outcomes[False]) > MIN_CLOSED
