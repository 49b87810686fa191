"""`kwire transactions`, beside a stock producer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.client.connection import MAX_VERSIONS
from kwire.testing import Broker
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import build
from kwire.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.cli.running import Desk

Opened = Callable[[str, str], Producer]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.partition.verification.enable": False}) as running:
        yield running


@pytest.fixture
def opened(broker: Broker) -> Opened:
    """Opens a transaction of this id in a topic."""

    def open_(name: str, topic: str) -> Producer:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(5)
        producer.begin_transaction()
        producer.produce(topic, "x")
        producer.flush(5)
        return producer

    return open_


def test_an_open_transaction_is_told_and_terminated(desk: Desk, opened: Opened) -> None:
    producer = opened("pay", "paid")
    (row,) = desk("transactions", "list", "--state", "Ongoing", "--json").json
    assert (row["transactional_id"], row["coordinator"]) == ("pay", 1)
    (told,) = desk("transactions", "describe", "pay", "--json").json
    assert (told["state"], told["partitions"]) == ("Ongoing", ["paid-0"])
    assert told["start_time"].endswith("Z")
    (writer,) = desk("transactions", "producers", "paid", "--json").json
    assert (writer["producer_id"], writer["txn_start_offset"]) == (row["producer_id"], 0)
    assert desk("transactions", "list", "--older-than", "1h", "--json").json == []
    assert (
        desk("transactions", "find-hanging", "paid", "--older-than", "0ms").err
        == "there are no hanging transactions\n"
    )
    assert desk("transactions", "terminate", "pay", "--json").json == [
        {"transactional_id": "pay", "terminated": True}
    ]
    assert desk("transactions", "describe", "pay", "--json").json[0]["state"] in ("CompleteAbort", "Empty")
    with pytest.raises(KafkaException):
        producer.commit_transaction(5)
    assert desk("consume", "paid", "--from", "0", "--until", "end", "--read-committed", "--values").out == ""


def test_what_hangs_is_found_and_aborted(desk: Desk, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    desk("produce", "hung", "before")
    _hang(broker, "hung", monkeypatch)
    (row,) = desk("transactions", "find-hanging", "--older-than", "0ms", "--json").json
    assert (row["topic"], row["start_offset"]) == ("hung", 1)
    abort = ("transactions", "abort", "hung", "--partition", "0", "--start-offset")
    assert "open transactions start at 1" in desk(*abort, "0").sentence
    assert "would be aborted" in desk(*abort, "1").out
    committed = ("consume", "hung", "--from", "0", "--until", "end", "--values", "--read-committed")
    assert len(desk("transactions", "find-hanging", "hung", "--older-than", "0ms", "--json").json) == 1
    assert "was aborted" in desk(*abort, "1", "--execute").out
    assert desk("transactions", "find-hanging", "hung", "--older-than", "0ms", "--json").json == []
    desk("produce", "hung", "after")
    assert desk(*committed).out == "before\nafter\n"


def _hang(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of a transaction that the coordinator knows nothing of, as brokers of old let in."""
    with CommandClient(ClientSettings(servers_of(broker.bootstrap_servers))) as cluster:
        made = cluster.send(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), InitProducerIdResponse
        )
        batch = build(
            [(1, None, b"void", [])],
            producer_id=made.producer_id,
            producer_epoch=made.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id="hangs",
            acks=-1,
            timeout_ms=5000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
            ],
        )
        monkeypatch.setitem(MAX_VERSIONS, ApiKey.PRODUCE, 11)  # from 12 on it begins a transaction (KIP-890)
        answer = cluster.send(request, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_what_is_wrong_is_one_sentence(desk: Desk) -> None:
    desk("topics", "create", "no-txn")
    assert "kwire transactions list" in desk("transactions", "describe", "nobody").sentence
    assert "kwire transactions list" in desk("transactions", "terminate", "nobody").sentence
    assert "expected Ongoing" in desk("transactions", "list", "--state", "Open").sentence
    assert (
        "the partition has no open transaction"
        in desk("transactions", "abort", "no-txn", "--partition", "0", "--start-offset", "0").sentence
    )
    assert (
        "only partition 0, not 5"
        in desk("transactions", "abort", "no-txn", "--partition", "5", "--start-offset", "0").sentence
    )
    beyond = desk("transactions", "producers", "no-txn", "--partition", "5")
    assert "only partition 0, not 5" in beyond.sentence
    assert "expected 10m for ten minutes" in desk("transactions", "list", "--older-than", "x").sentence
