"""Random follower fetches, with and without sessions, while leaders change."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from tests.broker.api.records.leader import Leader

PARTITIONS = 4
VERSIONS = (13, 15, 18)
MAX_WAIT_MS = 500


class RandomFollowers:
    """A leader, and connections whose fetches claim any replica id."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = Leader(partitions=PARTITIONS)
        self.clients = [self.harness.connect() for _ in range(3)]
        self.sessions: list[list[int]] = []
        """The id and epoch of each known session."""
        self.epoch = 1

    def step(self) -> None:
        rng, harness = self.rng, self.harness
        chance = rng.random()
        if chance < 0.25:
            harness.append(rng.randrange(PARTITIONS))
        elif chance < 0.3:
            self._change(rng.randrange(PARTITIONS))
        elif chance < 0.9:
            self._send_fetch()
        else:
            harness.host.advance(rng.choice((10, 100, 600)))

    def _change(self, index: int) -> None:
        self.epoch += 1
        image = PartitionImage(
            replicas=self.rng.choice(((1, 2), (1, 2), (1,), (1, 3))),
            isr=(1,),
            leader=self.rng.choice((1, 1, 2)),
            leader_epoch=self.epoch,
            partition_epoch=self.epoch,
        )
        partition = self.harness.partition(index)
        if image.leader == 1:
            partition.become_leader(image)
        else:
            partition.become_follower(image)

    def _send_fetch(self) -> None:
        rng, version = self.rng, self.rng.choice(VERSIONS)
        client = rng.choice(self.clients)
        client.send(version, self._request(version))
        for client in self.clients:
            for frame in take_frames(client):
                session_id = int.from_bytes(frame[15:19], "big")  # correlation id, no tags, throttle, error
                if session_id and all(known != session_id for known, _ in self.sessions):
                    self.sessions = [*self.sessions[-3:], [session_id, 1]]

    def _request(self, version: int) -> FetchRequest:
        rng, harness = self.rng, self.harness
        session_id, epoch = rng.choice(((0, 0), (0, -1), (rng.randrange(1 << 31), rng.randrange(-1, 5))))
        if self.sessions and rng.random() < 0.6:
            session = rng.choice(self.sessions)
            session_id, epoch = session
            session[1] += rng.random() < 0.9
        partitions = [
            FetchPartition(
                partition=index,
                fetch_offset=rng.choice((0, 1, 2, 3, rng.randrange(-2, 20))),
                partition_max_bytes=rng.choice((0, 10, 1 << 20)),
                current_leader_epoch=rng.choice(
                    (-1, self.epoch, harness.partition(index % PARTITIONS).leader_epoch)
                ),
                last_fetched_epoch=rng.choice((-1, -1, 1, self.epoch)),
                log_start_offset=rng.choice((-1, 0, 1)),
            )
            for index in rng.sample(range(PARTITIONS + 1), rng.randrange(PARTITIONS))
        ]
        replica_fields: dict[str, Any] = {"replica_id": rng.choice((2, 2, 2, 3, 1, -1, -3))}
        if version >= 15:
            replica_fields["replica_epoch"] = rng.choice((20, 20, 19, 21, -1))
            replica_fields = {"replica_state": ReplicaState(**replica_fields)}
        forgotten = [ForgottenTopic(topic_id=harness.topic_id, partitions=[rng.randrange(PARTITIONS)])]
        return FetchRequest(
            max_wait_ms=rng.choice((0, 100, MAX_WAIT_MS)),
            min_bytes=rng.choice((0, 1, 1, 200)),
            max_bytes=rng.choice((0, 50, 1 << 20)),
            session_id=session_id,
            session_epoch=epoch,
            isolation_level=rng.choice((0, 1)),
            topics=[FetchTopic(topic_id=harness.topic_id, partitions=partitions)] if partitions else [],
            forgotten_topics_data=forgotten if rng.random() < 0.1 else [],
            **replica_fields,
        )


def take_frames(client: Any) -> list[bytes]:
    """Return the received frames with their size prefixes."""
    data, frames = client.take_bytes(), []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        frames.append(data[:size])
        data = data[size:]
    return frames


@pytest.mark.parametrize("seed", range(12))
def test_random_follower_fetches_keep_the_high_watermark_valid(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    followers = RandomFollowers(seed)
    harness = followers.harness
    high_watermarks = [0] * PARTITIONS
    with caplog.at_level(logging.ERROR):
        for _ in range(120):
            followers.step()
            for index in range(PARTITIONS):
                partition = harness.partition(index)
                assert high_watermarks[index] <= partition.high_watermark <= partition.log.written_end_offset
                high_watermarks[index] = partition.high_watermark
        harness.host.advance(MAX_WAIT_MS)
    assert not caplog.records
    assert not any(
        context for client in followers.clients for context in client.channel.slots if not context.completed
    )
