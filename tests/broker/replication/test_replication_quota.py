"""Replication quotas: the measured rate, and throttled followers."""

from __future__ import annotations

import pytest

from kwire.broker.config.load import load
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from kwire.broker.replication.replication_quota import FOLLOWER_SIDE, LEADER_SIDE, ReplicationQuota
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.records.metadata import ConfigRecord
from tests.broker.replication.follower_harness import FollowerHarness, data, leader_batches


def make_quota(
    side: str = LEADER_SIDE, *, rate: str = "1000", replicas: str = "*"
) -> tuple[VirtualHost, ReplicationQuota]:
    host, image = VirtualHost(), MetadataImage()
    image.configs = {
        (RESOURCE_BROKER, "1"): {f"{side}.replication.throttled.rate": rate},
        (RESOURCE_TOPIC, "t"): {f"{side}.replication.throttled.replicas": replicas},
    }
    return host, ReplicationQuota(side, load(None, {}, {"node.id": "1"}), host, lambda: image)


@pytest.mark.parametrize(
    ("replicas", "throttled"),
    [("", []), ("none", []), ("*", [0, 1, 2, 11]), ("0:1,1:11,2:2, 11:1", [0, 11]), ("1:0", [])],
)
def test_throttled_replicas_of_a_topic(replicas: str, throttled: list[int]) -> None:
    _, quota = make_quota(replicas=replicas)
    assert [index for index in (0, 1, 2, 11) if quota.is_throttled("t", index)] == throttled
    assert not quota.is_throttled("u", 0)


def test_rate_is_measured_over_the_last_windows() -> None:
    host, quota = make_quota()
    assert not quota.is_quota_exceeded
    quota.record(1000)
    assert not quota.is_quota_exceeded
    quota.record(1)
    assert quota.is_quota_exceeded
    host.advance(1_001)
    assert not quota.is_quota_exceeded
    quota.record(5_000)
    assert quota.is_quota_exceeded
    host.advance(5_000)
    assert not quota.is_quota_exceeded
    quota.record(100_000)
    host.advance(11_000)
    assert not quota.is_quota_exceeded


def test_no_throttling_without_a_rate() -> None:
    _, quota = make_quota(rate="")
    quota.record(1 << 40)
    assert not quota.is_quota_exceeded


def test_only_lagging_followers_are_throttled() -> None:
    harness = FollowerHarness()
    harness.follow(2)
    harness.write(
        ConfigRecord(
            resource_type=RESOURCE_BROKER,
            resource_name="1",
            name=f"{FOLLOWER_SIDE}.replication.throttled.rate",
            value="100",
        ),
        ConfigRecord(
            resource_type=RESOURCE_TOPIC,
            resource_name="t",
            name=f"{FOLLOWER_SIDE}.replication.throttled.replicas",
            value="0:1,1:1",
        ),
    )
    harness.fetch(
        data(leader_batches(0, 4, size_bytes=150), high_watermark=9),
        data(leader_batches(0, 4, size_bytes=150), index=1, high_watermark=1),
    )
    assert harness.fetch_positions == {1: (1, 4, 4)}
    harness.fetch(data(leader_batches(1, 4), index=1, high_watermark=2))
    assert harness.fetch_positions == {1: (2, 4, 4)}
    harness.host.advance(4_000)
    harness.fetch()
    assert harness.fetch_positions == {}
    harness.host.advance(4_000)
    harness.fetch()
    assert harness.fetch_positions == {0: (1, 4, 4)}
    harness.change(leader=3)
    harness.host.advance(4_000)
    assert harness.fetchers.quota.is_throttled("t", 0)
