"""A consumer group without members that someone of the classic protocol asks to join."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from tests.coordinator.groups.consumer.script import GROUP, Script


def ask(script: Script, *lines: str) -> list[str]:
    return [answer for line in lines for answer in script.run(line)]


def test_a_member_that_is_refused_changes_nothing() -> None:
    script = Script()
    ask(script, "topic t 1", "join a t", "commit a t:0 5", "leave a")
    before = ask(script, "list", "describe")
    assert ask(script, "classic member=nobody") == ["UNKNOWN_MEMBER_ID"]
    assert ask(script, "list", "describe") == before


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
