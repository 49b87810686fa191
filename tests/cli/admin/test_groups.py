"""`kwire groups`, with a confluent-kafka consumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kwire.testing import Broker
from tests.cli.run_command import RunCommand


@pytest.fixture
def topic(run: RunCommand) -> str:
    """Return a topic of six records."""
    run("topics", "create", "fill", "--if-not-exists")
    if run("topics", "describe", "fill", "--offsets", "--json").json[0]["end"] == 0:
        run("produce", "fill", *"abcdef")
    return "fill"


def _commit(broker: Broker, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition("fill", 0, offset)], asynchronous=False)
    consumer.close()


def _committed(admin: AdminClient, group: str) -> list[int]:
    futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return [one.offset for one in futures[group].result(5).topic_partitions]


@pytest.fixture(params=["classic", "consumer"])
def member(request: pytest.FixtureRequest, broker: Broker, topic: str) -> Iterator[str]:
    """Return the group of an active member that has read two records."""
    group = f"live-{request.param}"
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": request.param,
            "client.id": "cli-test",
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


def test_describe_shows_members_state_and_lag(run: RunCommand, member: str) -> None:
    kind = member.removeprefix("live-")
    (listed,) = [row for row in run("groups", "list", "--json").json if row["group"] == member]
    assert (listed["type"].lower(), listed["state"]) == (kind, "Stable")
    (row,) = run("groups", "describe", member, "--json").json
    assert (row["topic"], row["partition"], row["committed"], row["end"], row["lag"]) == ("fill", 0, 2, 6, 4)
    assert row["client"] == "cli-test"
    (described,) = run("groups", "describe", member, "--members", "--json").json
    assert (described["client"], described["partitions"]) == ("cli-test", ["fill-0"])
    (state,) = run("groups", "describe", member, "--state", "--json").json
    assert (state["state"], state["coordinator"], state["members"]) == ("Stable", 1, 1)
    assert state["assignor"] in ("range", "uniform")
    moved = run("groups", "reset", member, "--to", "beginning", "--execute")
    assert moved.sentence == f"kwire groups: group {member} has 1 member: stop them first"
    deleted = run("groups", "delete", member)
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
def test_reset_changes_offsets_only_with_execute(
    run: RunCommand, broker: Broker, admin: AdminClient, topic: str, where: list[str], offset: int
) -> None:
    _commit(broker, "moved", 3)
    dry = run("groups", "reset", "moved", "--topic", "fill:0", *where)
    assert dry.err == "nothing was changed: use --execute to apply this\n"
    assert dry.out.split()[-6:] == ["moved", "fill", "0", "3", str(offset), "6"]
    assert _committed(admin, "moved") == [3]
    assert run("groups", "reset", "moved", *where, "--execute", "--json").json[0]["new"] == offset
    assert _committed(admin, "moved") == [offset]


def test_reset_creates_a_group(run: RunCommand, admin: AdminClient, topic: str) -> None:
    result = run("groups", "reset", "fresh", "--topic", "fill", "--to", "2", "--execute")
    assert result.status == 0
    assert result.err == "there is no group 'fresh' yet, it will be created\n"
    assert _committed(admin, "fresh") == [2]


def test_delete_offsets_only_with_execute(
    run: RunCommand, broker: Broker, admin: AdminClient, topic: str
) -> None:
    _commit(broker, "forgets", 1)
    assert run("groups", "delete-offsets", "forgets", "--topic", "fill", "--json").json[0]["committed"] == 1
    assert _committed(admin, "forgets") == [1]
    run("groups", "delete-offsets", "forgets", "--topic", "fill", "--execute")
    assert _committed(admin, "forgets") == []
    again = run("groups", "delete-offsets", "forgets", "--topic", "fill")
    assert "has no committed offsets in the selected partitions" in again.err


def test_group_is_deleted(run: RunCommand, broker: Broker, topic: str) -> None:
    _commit(broker, "ends", 1)
    described = run("groups", "describe", "ends")
    assert described.err == "group ends has no active members\n"
    assert run("groups", "delete", "ends", "--json").json == [{"group": "ends", "deleted": True}]
    assert "kwire groups list" in run("groups", "delete", "ends").sentence


def test_groups_errors_are_one_sentence(run: RunCommand, broker: Broker, topic: str) -> None:
    _commit(broker, "wrongly", 1)
    assert "did you mean 'wrongly'?" in run("groups", "describe", "wrongy").sentence
    assert run("groups", "reset", "wrongly").status == 2
    assert run("groups", "reset", "wrongly", "--to", "end", "--by", "1").status == 2
    assert run("groups", "reset", "wrongly", "--to", "end", "--execute", "--dry-run").status == 2
    assert run("groups", "reset", "wrongly", "--to", "end", "--topic", "fill:x").status == 2
    assert (
        "only partition 0, not 9"
        in run("groups", "reset", "wrongly", "--to", "end", "--topic", "fill:9").sentence
    )
    assert "choose a topic with --topic" in run("groups", "reset", "unheard-of", "--to", "end").sentence
    assert "use --to POSITION" in run("groups", "reset", "new-one", "--by", "1", "--topic", "fill").sentence
    assert run("groups", "list", "--state", "dead", "--type", "classic").status == 0
    unknown = run("groups", "delete-offsets", "wrong").sentence
    assert "there is no group 'wrong', or this user may not describe it, did you" in unknown
    assert (
        "--type foo is not a type: expected one of classic, "
        in run("groups", "list", "--type", "foo").sentence
    )
    assert "--state idle is not a state: expected one of Empty, Stable, " in (
        run("groups", "list", "--state", "stable", "--state", "idle").sentence
    )
