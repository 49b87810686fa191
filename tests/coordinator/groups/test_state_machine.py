"""Classic members that join an empty consumer group."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from tests.coordinator.groups.consumer.script import GROUP, Script


def run(script: Script, *lines: str) -> list[str]:
    return [output for line in lines for output in script.run(line)]


def test_refused_classic_member_changes_nothing() -> None:
    script = Script()
    run(script, "topic t 1", "join a t", "commit a t:0 5", "leave a")
    before = run(script, "list", "describe")
    assert run(script, "classic member=nobody") == ["UNKNOWN_MEMBER_ID"]
    assert run(script, "list", "describe") == before


@pytest.mark.parametrize("before_join", ["nothing", "a consumer group"])
def test_classic_group_that_cannot_be_stored_keeps_the_previous_state(before_join: str) -> None:
    script = Script()
    if before_join != "nothing":
        run(script, "topic t 1", "join a t", "commit a t:0 5", "leave a")
    before = run(script, "list")
    script.harness.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    for joining in (script.harness.join(GROUP, instance="i"), script.harness.join(GROUP, id_first=False)):
        assert joining.error == ErrorCode.UNKNOWN_SERVER_ERROR
    refused = script.harness.join(GROUP)
    assert refused.error == ErrorCode.MEMBER_ID_REQUIRED
    assert run(script, "list") == before
    script.harness.ports.refuse = None
    assert script.harness.join(GROUP, refused.value.member_id).error == ErrorCode.UNKNOWN_MEMBER_ID
    later = script.harness.join(GROUP, id_first=False)
    script.harness.host.advance(3_000)
    assert (later.error, len(later.value.members)) == (ErrorCode.NONE, 1)
