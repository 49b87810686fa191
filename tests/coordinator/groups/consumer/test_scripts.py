"""The scripts in `scripts/`, which say what they are about. `--rewrite` writes their answers anew."""

from __future__ import annotations

import pytest

from kwire.coordinator.groups.consumer import heartbeat
from kwire.coordinator.groups.consumer.heartbeat import ConsumerGroups
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.groups.consumer.requests import ClientIdentity, updated_member
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.coordinator.groups.consumer.script import FOLDER, Script, played

NAMES = sorted(path.name for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_answers_as_it_says(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    text = path.read_text()
    answered = played(text)
    if request.config.getoption("--rewrite"):
        path.write_text(answered)
    else:
        assert answered == text


@pytest.mark.parametrize("name", NAMES)
def test_the_short_way_of_steady_heartbeats_answers_as_the_long_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerGroups, "_is_keep_alive", lambda *_: False)
    text = (FOLDER / name).read_text()
    assert played(text) == text


@pytest.mark.parametrize("subscription", ["topics=t", "topics= regex=t.*"])
@pytest.mark.parametrize("instance", ["", " instance=i"])
def test_a_heartbeat_that_says_nothing_new_goes_the_short_way(
    subscription: str, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.run("topic t 2")
    script.run(f"join a {subscription}{instance}")
    script.run("wait 1000")
    for _ in range(3):
        script.run("beat a owns=all")
    long_way: list[object] = []

    def seen(
        member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity
    ) -> ConsumerGroupMember:
        long_way.append(request)
        return updated_member(member, request, client)

    monkeypatch.setattr(heartbeat, "updated_member", seen)
    for _ in range(20):
        script.run("wait 30000")
        assert script.run("beat a") == [f"epoch {script.clients['a'].epoch}"]
    assert not long_way
    script.run("beat a timeout=1000")
    assert long_way
    script.run("wait 60000")
    assert script.run("beat a")[0].startswith(("UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND"))


def test_there_are_scripts() -> None:
    assert NAMES
