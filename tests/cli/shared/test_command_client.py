"""Waiting of commands for topics and brokers."""

from __future__ import annotations

import io

import pytest

from kwire.cli.records.produce import CREATE_SECONDS
from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.output import Output
from kwire.client.errors import Disconnected, SecurityMismatch
from kwire.testing import Broker
from kwire.wire.errors import ApiError, ErrorCode
from tests.cli.run_command import RunCommand


def test_wait_for_topic_ends_at_the_timeout(broker: Broker) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    settings = ClientSettings(servers_of(broker.bootstrap_servers), timeout_seconds=1)
    with CommandClient(settings, now=lambda: now[0], sleep=sleep) as cluster:
        cluster.wait_for_topic("unheard-of", lambda topic: bool(topic.error_code))
        assert now[0] == 0
        cluster.wait_for_topic("unheard-of", lambda topic: now[0] > 0.25)
        assert now[0] == pytest.approx(0.3)
        cluster.wait_for_topic("unheard-of", lambda topic: False)
        assert now[0] == pytest.approx(1.3, abs=0.11)


@pytest.mark.parametrize(
    "error", [Disconnected("away"), ApiError(ErrorCode.BROKER_NOT_AVAILABLE), SecurityMismatch("other words")]
)
def test_unreachable_broker_is_reported_and_not_waited_for(broker: Broker, error: Exception) -> None:
    settings = ClientSettings(servers_of(broker.bootstrap_servers), timeout_seconds=1)
    queried = []
    out, err = io.StringIO(), io.StringIO()

    def condition(node_id: int) -> bool:
        queried.append(node_id)
        raise error

    with CommandClient(settings) as cluster:
        cluster.wait_for_all_brokers(condition, Output(as_json=False, environ={}, out=out, err=err))
    assert queried == [1]
    assert (out.getvalue(), err.getvalue()) == ("", "node 1 has not applied the change yet\n")


def test_missing_topic_names_the_create_command(offline: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.cli.records.produce.CREATE_SECONDS", 0.05)
    assert CREATE_SECONDS > 1
    with Broker({"auto.create.topics.enable": False}) as broker:
        result = offline("produce", "missing", "x", "-b", broker.bootstrap_servers)
    assert result.sentence == (
        "kwire produce: there is no topic 'missing': create it with 'kwire topics create missing'"
    )
