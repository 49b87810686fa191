"""`kwire groups`, beside a stock consumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kwire.testing import Broker
from tests.cli.running import Desk


@pytest.fixture
def topic(desk: Desk) -> str:
    """Six records."""
    desk("topics", "create", "fill", "--if-not-exists")
    if desk("topics", "describe", "fill", "--offsets", "--json").json[0]["end"] == 0:
        desk("produce", "fill", *"abcdef")
    return "fill"


def _commit(broker: Broker, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition("fill", 0, offset)], asynchronous=False)
    consumer.close()


def _committed(admin: AdminClient, group: str) -> list[int]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return [one.offset for one in asked[group].result(5).topic_partitions]


@pytest.fixture(params=["classic", "consumer"])
def member(request: pytest.FixtureRequest, broker: Broker, topic: str) -> Iterator[str]:
    """A member that has read two records, and stays; its group."""
    group = f"live-{request.param}"
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": request.param,
            "client.id": "desk-test",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    first, second = consumer.consume(2, 10)
    assert (first.offset(), second.offset()) == (0, 1)
    consumer.commit(message=second, asynchronous=False)
    yield group
    consumer.close()


def test_members_and_how_far_they_are(desk: Desk, member: str) -> None:
    kind = member.removeprefix("live-")
    (listed,) = [row for row in desk("groups", "list", "--json").json if row["group"] == member]
    assert (listed["type"].lower(), listed["state"]) == (kind, "Stable")
    (row,) = desk("groups", "describe", member, "--json").json
    assert (row["topic"], row["partition"], row["committed"], row["end"], row["lag"]) == ("fill", 0, 2, 6, 4)
    assert row["client"] == "desk-test"
    (told,) = desk("groups", "describe", member, "--members", "--json").json
    assert (told["client"], told["partitions"]) == ("desk-test", ["fill-0"])
    (state,) = desk("groups", "describe", member, "--state", "--json").json
    assert (state["state"], state["coordinator"], state["members"]) == ("Stable", 1, 1)
    assert state["assignor"] in ("range", "uniform")
    moved = desk("groups", "reset", member, "--to", "beginning", "--execute")
    assert moved.sentence == f"kwire groups: group {member} has 1 member: stop them first"
    deleted = desk("groups", "delete", member)
    assert deleted.sentence.endswith("non empty group; stop the group's members first")


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        (["--to", "beginning"], 0),
        (["--to", "end"], 6),
        (["--to", "4"], 4),
        (["--to", "99"], 6),
        (["--to", "current"], 3),
        (["--to", "-1"], 5),
        (["--to", "1d"], 0),
        (["--by", "2"], 5),
        (["--by", "-1"], 2),
        (["--by", "-100"], 0),
    ],
)
def test_a_group_is_moved_only_when_it_is_meant(
    desk: Desk, broker: Broker, admin: AdminClient, topic: str, where: list[str], offset: int
) -> None:
    _commit(broker, "moved", 3)
    dry = desk("groups", "reset", "moved", "--topic", "fill:0", *where)
    assert dry.err == "nothing was changed: use --execute to apply this\n"
    assert dry.out.split()[-6:] == ["moved", "fill", "0", "3", str(offset), "6"]
    assert _committed(admin, "moved") == [3]
    assert desk("groups", "reset", "moved", *where, "--execute", "--json").json[0]["new"] == offset
    assert _committed(admin, "moved") == [offset]


def test_a_new_group_may_be_given_offsets(desk: Desk, admin: AdminClient, topic: str) -> None:
    ran = desk("groups", "reset", "fresh", "--topic", "fill", "--to", "2", "--execute")
    assert ran.status == 0
    assert ran.err == "there is no group 'fresh' yet, it will be created\n"
    assert _committed(admin, "fresh") == [2]


def test_offsets_are_forgotten(desk: Desk, broker: Broker, admin: AdminClient, topic: str) -> None:
    _commit(broker, "forgets", 1)
    assert desk("groups", "delete-offsets", "forgets", "--topic", "fill", "--json").json[0]["committed"] == 1
    assert _committed(admin, "forgets") == [1]
    desk("groups", "delete-offsets", "forgets", "--topic", "fill", "--execute")
    assert _committed(admin, "forgets") == []
    again = desk("groups", "delete-offsets", "forgets", "--topic", "fill")
    assert "has no committed offsets there" in again.err


def test_a_group_is_deleted(desk: Desk, broker: Broker, topic: str) -> None:
    _commit(broker, "ends", 1)
    told = desk("groups", "describe", "ends")
    assert told.err == "group ends has no active members\n"
    assert desk("groups", "delete", "ends", "--json").json == [{"group": "ends", "deleted": True}]
    assert "kwire groups list" in desk("groups", "delete", "ends").sentence


def test_wrong_use(desk: Desk, broker: Broker, topic: str) -> None:
    _commit(broker, "wrongly", 1)
    assert "did you mean 'wrongly'?" in desk("groups", "describe", "wrongy").sentence
    assert desk("groups", "reset", "wrongly").status == 2
    assert desk("groups", "reset", "wrongly", "--to", "end", "--by", "1").status == 2
    assert desk("groups", "reset", "wrongly", "--to", "end", "--execute", "--dry-run").status == 2
    assert desk("groups", "reset", "wrongly", "--to", "end", "--topic", "fill:x").status == 2
    assert (
        "only partition 0, not 9"
        in desk("groups", "reset", "wrongly", "--to", "end", "--topic", "fill:9").sentence
    )
    assert "choose a topic with --topic" in desk("groups", "reset", "unheard-of", "--to", "end").sentence
    assert "use --to POSITION" in desk("groups", "reset", "new-one", "--by", "1", "--topic", "fill").sentence
    assert desk("groups", "list", "--state", "dead", "--type", "classic").status == 0
    assert "there is no group 'wrong', did you" in desk("groups", "delete-offsets", "wrong").sentence
    assert (
        "--type foo is not a type: expected one of classic, "
        in desk("groups", "list", "--type", "foo").sentence
    )
    assert "--state idle is not a state: expected one of Empty, Stable, " in (
        desk("groups", "list", "--state", "stable", "--state", "idle").sentence
    )
