"""How fast replicas may be copied, and what a follower does that has to wait."""

from __future__ import annotations

import pytest

from kwire.broker.config.load import load
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from kwire.broker.replication.replication_quota import FOLLOWER_SIDE, LEADER_SIDE, ReplicationQuota
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.records.metadata import ConfigRecord
from tests.broker.replication.follower_harness import FollowerHarness, data, stored


def throttle(
    side: str = LEADER_SIDE, *, rate: str = "1000", replicas: str = "*"
) -> tuple[VirtualHost, ReplicationQuota]:
    host, image = VirtualHost(), MetadataImage()
    image.configs = {
        (RESOURCE_BROKER, "1"): {f"{side}.replication.throttled.rate": rate},
        (RESOURCE_TOPIC, "t"): {f"{side}.replication.throttled.replicas": replicas},
    }
    return host, ReplicationQuota(side, load(None, {}, {"node.id": "1"}), host, lambda: image)


@pytest.mark.parametrize(
    ("replicas", "covered"),
    [("", []), ("none", []), ("*", [0, 1, 2, 11]), ("0:1,1:11,2:2, 11:1", [0, 11]), ("1:0", [])],
)
def test_a_topic_lists_its_replicas_that_are_limited(replicas: str, covered: list[int]) -> None:
    _, limit = throttle(replicas=replicas)
    assert [index for index in (0, 1, 2, 11) if limit.is_throttled("t", index)] == covered
    assert not limit.is_throttled("u", 0)


def test_the_rate_is_that_of_the_last_windows() -> None:
    host, limit = throttle()
    assert not limit.is_quota_exceeded
    limit.record(1000)
    assert not limit.is_quota_exceeded
    limit.record(1)
    assert limit.is_quota_exceeded
    host.advance(1_001)
    assert not limit.is_quota_exceeded
    limit.record(5_000)
    assert limit.is_quota_exceeded
    host.advance(5_000)
    assert not limit.is_quota_exceeded
    limit.record(100_000)
    host.advance(11_000)
    assert not limit.is_quota_exceeded


def test_without_a_rate_nothing_is_limited() -> None:
    _, limit = throttle(rate="")
    limit.record(1 << 40)
    assert not limit.is_quota_exceeded


def test_a_follower_that_is_behind_waits_and_one_that_is_not_goes_on() -> None:
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
        data(stored(0, 4, size_bytes=150), high_watermark=9),
        data(stored(0, 4, size_bytes=150), index=1, high_watermark=1),
    )
    assert harness.asked == {1: (1, 4, 4)}
    harness.fetch(data(stored(1, 4), index=1, high_watermark=2))
    assert harness.asked == {1: (2, 4, 4)}
    harness.host.advance(4_000)
    harness.fetch()
    assert harness.asked == {}
    harness.host.advance(4_000)
    harness.fetch()
    assert harness.asked == {0: (1, 4, 4)}
    harness.change(leader=3)
    harness.host.advance(4_000)
    assert harness.fetchers.quota.is_throttled("t", 0)
