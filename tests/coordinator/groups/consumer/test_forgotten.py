"""Consumer groups that are gone without a record, because a classic member asked to join in vain."""

from __future__ import annotations

import pytest

from kwire.coordinator.groups.offsets import Commit, PartitionCommit
from kwire.coordinator.runtime import partition_of
from kwire.wire.errors import ErrorCode
from tests.coordinator.groups.consumer.script import GROUP, Script, topic_id
from tests.coordinator.scripting import PARTITIONS, Reply

PRODUCER = (7, 0)
OTHER = next(
    name for name in map(str, range(100)) if partition_of(name, PARTITIONS) == partition_of(GROUP, PARTITIONS)
)
OFFSET = PartitionCommit("t", 0, 9, -1, "", topic_id("t"))


def forgotten() -> Script:
    """A group with an offset that is gone, but seen."""
    script = Script()
    for line in ("topic t 1", "join a t", "commit a t:0 5", "leave a", "classic member=nobody"):
        list(script.run(line))
    return script


def ask(script: Script, *lines: str) -> list[str]:
    return [answer for line in lines for answer in script.run(line)]


def commit(script: Script, group: str, *commits: PartitionCommit) -> ErrorCode:
    reply = Reply()
    script.cluster.service.commit_offsets(Commit(group, -1, "", None, commits, None, 9), reply)
    script.cluster.host.run_pending()
    code: ErrorCode = reply.value
    return code


def offsets(script: Script, *, require_stable: bool) -> dict[str, list[int]]:
    reply = Reply()
    script.cluster.service.fetch_offsets(
        GROUP,
        lambda stored: {topic: [one.offset for one in all_.values()] for topic, all_ in stored.items()},
        reply,
        require_stable=require_stable,
    )
    script.cluster.host.run_pending()
    code, found = reply.value
    return {ErrorCode(code).name: []} if code else dict(found)


def test_its_offsets_go_with_it_and_who_wants_stable_ones_is_told_at_once() -> None:
    script = forgotten()
    assert offsets(script, require_stable=False) == {"t": [5]}
    assert ask(script, "fetch a epoch=2") == ["UNKNOWN_MEMBER_ID"]
    assert offsets(script, require_stable=True) == {}
    assert commit(script, OTHER, OFFSET) == ErrorCode.NONE
    assert ask(script, "list") == [f"{OTHER}: classic  Empty"]
    assert offsets(script, require_stable=False) == {}
    assert commit(script, GROUP) == ErrorCode.NONE  # of which nothing is stored
    assert offsets(script, require_stable=False) == {}
    assert offsets(script, require_stable=True) == {"t": [5]}


def test_a_transaction_that_commits_does_not_bring_it_back() -> None:
    script = Script()
    ask(script, "topic t 1", "join a t", "leave a")
    reply = Reply()
    pending = Commit(GROUP, -1, "", None, [OFFSET], None, 0)
    script.cluster.service.commit_transactional_offsets(pending, PRODUCER, reply)
    script.cluster.host.run_pending()
    assert reply.value == ErrorCode.NONE
    ask(script, "classic member=nobody")
    script.cluster.service.transaction_ended(partition_of(GROUP, PARTITIONS), PRODUCER[0], commit=True)
    assert ask(script, "list") == []
    assert ask(script, "delete") == ["GROUP_ID_NOT_FOUND"]


def test_a_write_that_is_refused_has_it_back() -> None:
    script = forgotten()
    assert commit(script, GROUP) == ErrorCode.NONE
    wide = [OFFSET._replace(partition=number, metadata="x" * 4000) for number in range(300)]
    assert commit(script, OTHER, *wide) != ErrorCode.NONE
    assert ask(script, "list", "delete") == ["g: consumer consumer Empty", "NONE"]


@pytest.mark.parametrize("was", ["nothing", "a consumer group"])
def test_a_classic_group_that_the_log_refuses_leaves_what_was_there(was: str) -> None:
    script = Script()
    if was != "nothing":
        ask(script, "topic t 1", "join a t", "commit a t:0 5", "leave a")
    before = ask(script, "list")
    script.cluster.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    for joining in (script.cluster.join(GROUP, instance="i"), script.cluster.join(GROUP, id_first=False)):
        assert joining.error == ErrorCode.UNKNOWN_SERVER_ERROR
    asked = script.cluster.join(GROUP)
    assert asked.error == ErrorCode.MEMBER_ID_REQUIRED
    assert ask(script, "list") == before
    script.cluster.ports.refuse = None
    assert script.cluster.join(GROUP, asked.value.member_id).error == ErrorCode.UNKNOWN_MEMBER_ID
    later = script.cluster.join(GROUP, id_first=False)
    script.cluster.host.advance(3_000)
    assert (later.error, len(later.value.members)) == (ErrorCode.NONE, 1)
