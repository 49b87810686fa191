"""A cluster whose brokers come and go."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kwire.desk.cluster import Cluster
from kwire.desk.failure import Failure, Lost
from kwire.desk.produce import CREATE_SECONDS
from kwire.desk.sending import ACKS, Sending
from kwire.desk.settings import ClientSettings, servers_of
from kwire.testing import Broker
from kwire.wire.compression import Codec
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.desk.running import Desk


def _cluster(servers: str, seconds: float = 20) -> Cluster:
    return Cluster(ClientSettings(servers_of(servers), timeout_seconds=seconds))


def test_what_passes_is_tried_again_until_the_time_is_over() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    cluster = Cluster(ClientSettings((), timeout_seconds=1), now=lambda: now[0], sleep=sleep)
    errors: list[Exception] = [Lost("away"), ApiError(ErrorCode.NOT_CONTROLLER)]

    def attempt() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert cluster.retried(attempt) == "done"
    assert now[0] == pytest.approx(0.2)
    _fails(cluster, Lost("a:1: refused"), Failure, "a:1: refused: start that broker")
    assert now[0] > 1
    _fails(cluster, ApiError(ErrorCode.NOT_CONTROLLER), ApiError, "NOT_CONTROLLER")
    before = now[0]
    _fails(cluster, ApiError(ErrorCode.INVALID_CONFIG), ApiError, "INVALID_CONFIG")
    assert now[0] == before


def test_a_change_is_waited_for_but_not_for_ever(broker: Broker) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    settings = ClientSettings(servers_of(broker.bootstrap_servers), timeout_seconds=1)
    with Cluster(settings, now=lambda: now[0], sleep=sleep) as cluster:
        cluster.settle("unheard-of", lambda topic: bool(topic.error_code))
        assert now[0] == 0
        cluster.settle("unheard-of", lambda topic: now[0] > 0.25)
        assert now[0] == pytest.approx(0.3)
        cluster.settle("unheard-of", lambda topic: False)
        assert now[0] == pytest.approx(1.3, abs=0.11)


def _fails(cluster: Cluster, error: Exception, kind: type[Exception], match: str) -> None:
    def attempt() -> None:
        raise error

    with pytest.raises(kind, match=match):
        cluster.retried(attempt)


def test_servers_that_are_down_are_passed_over(broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with _cluster(f"127.0.0.1:{port},{broker.bootstrap_servers}") as cluster:
        assert list(cluster.brokers()) == [1]
        assert (
            cluster.ask_node(1, DescribeClusterRequest(), DescribeClusterResponse).brokers[0].broker_id == 1
        )
        with pytest.raises(ApiError, match="broker 9 is not in the cluster"):
            cluster.ask_node(9, DescribeClusterRequest(), DescribeClusterResponse)


@pytest.mark.parametrize("acks", ["all", "1"])
def test_a_broker_that_is_away_for_a_moment_is_waited_for(tmp_path: Path, acks: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    settings = {"listeners": f"PLAINTEXT://{address}", "advertised.listeners": f"PLAINTEXT://{address}"}
    broker = Broker(settings, log_dir=tmp_path)
    broker.start()
    with _cluster(address) as cluster:
        _made(cluster, "away")
        sending = Sending(cluster, "away", ACKS[acks], Codec.NONE)
        sending.send({0: [(1, None, b"before", [])]})
        broker.stop()
        back = threading.Timer(0.2, broker.start)
        back.start()
        sending.send({0: [(1, None, b"after", [])]})
        back.join()
        assert sending.sums() == [{"partition": 0, "records": 2, "first_offset": 0}]
    broker.stop()


def _made(cluster: Cluster, topic: str) -> None:
    def attempt() -> None:
        if code := cluster.metadata([topic], create=True).topics[0].error_code:
            raise ApiError(ErrorCode(code))

    cluster.retried(attempt)


def test_an_answer_that_is_lost_does_not_write_twice(
    desk: Desk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk("topics", "create", "lost-answer")
    with _cluster(broker.bootstrap_servers) as cluster:
        sending = Sending(cluster, "lost-answer", ACKS["all"], Codec.NONE)
        ask: Callable[..., object] = cluster.ask_node
        lost = [True]

        def ask_and_lose(*arguments: object) -> object:
            answer = ask(*arguments)
            if lost:
                lost.clear()
                raise Lost("on its way")
            return answer

        monkeypatch.setattr(cluster, "ask_node", ask_and_lose)
        sending.send({0: [(1, None, b"once", [])]})
        sending.send({0: [(1, None, b"then", [])]})
    assert not lost
    assert desk("consume", "lost-answer", "--from", "0", "--until", "end", "--values").out == "once\nthen\n"


def test_a_topic_that_nobody_creates_is_told(offline: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.desk.produce.CREATE_SECONDS", 0.05)
    assert CREATE_SECONDS > 1
    with Broker({"auto.create.topics.enable": False}) as broker:
        ran = offline("produce", "nobody", "x", "-b", broker.bootstrap_servers)
    assert ran.sentence == (
        "kwire produce: there is no topic 'nobody': create it with 'kwire topics create nobody'"
    )
