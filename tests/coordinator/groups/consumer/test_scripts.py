"""The scripts in `scripts/`. `pytest --rewrite` replaces their output."""

from __future__ import annotations

import pytest

from kwire.coordinator.groups.consumer import heartbeat
from kwire.coordinator.groups.consumer.heartbeat import ConsumerGroups
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.groups.consumer.requests import ClientIdentity, updated_member
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.coordinator.groups.consumer.script import FOLDER, Script, run_script

NAMES = sorted(path.name for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_script_output_matches(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    text = path.read_text()
    actual = run_script(text)
    if request.config.getoption("--rewrite"):
        path.write_text(actual)
    else:
        assert actual == text


@pytest.mark.parametrize("name", NAMES)
def test_scripts_give_the_same_output_without_the_heartbeat_fast_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerGroups, "_is_keep_alive", lambda *_: False)
    text = (FOLDER / name).read_text()
    assert run_script(text) == text


@pytest.mark.parametrize("subscription", ["topics=t", "topics= regex=t.*"])
@pytest.mark.parametrize("instance", ["", " instance=i"])
def test_unchanged_heartbeat_takes_the_fast_path(
    subscription: str, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.run("topic t 2")
    script.run(f"join a {subscription}{instance}")
    script.run("wait 1000")
    for _ in range(3):
        script.run("beat a owns=all")
    full_updates: list[object] = []

    def record_update(
        member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity
    ) -> ConsumerGroupMember:
        full_updates.append(request)
        return updated_member(member, request, client)

    monkeypatch.setattr(heartbeat, "updated_member", record_update)
    for _ in range(20):
        script.run("wait 30000")
        assert script.run("beat a") == [f"epoch {script.clients['a'].epoch}"]
    assert not full_updates
    script.run("beat a timeout=1000")
    assert full_updates
    script.run("wait 60000")
    assert script.run("beat a")[0].startswith(("UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND"))


def test_there_are_scripts() -> None:
    assert NAMES
