"""`kwire transactions`, with a confluent-kafka producer."""

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
from tests.cli.run_command import RunCommand

OpenTransaction = Callable[[str, str], Producer]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.partition.verification.enable": False}) as running:
        yield running


@pytest.fixture
def open_transaction(broker: Broker) -> OpenTransaction:
    """Return a function that opens a transaction with an id in a topic."""

    def open_(name: str, topic: str) -> Producer:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(5)
        producer.begin_transaction()
        producer.produce(topic, "x")
        producer.flush(5)
        return producer

    return open_


def test_open_transaction_is_listed_described_and_terminated(
    run: RunCommand, open_transaction: OpenTransaction
) -> None:
    producer = open_transaction("pay", "paid")
    (row,) = run("transactions", "list", "--state", "Ongoing", "--json").json
    assert (row["transactional_id"], row["coordinator"]) == ("pay", 1)
    (described,) = run("transactions", "describe", "pay", "--json").json
    assert (described["state"], described["partitions"]) == ("Ongoing", ["paid-0"])
    assert described["start_time"].endswith("Z")
    (writer,) = run("transactions", "producers", "paid", "--json").json
    assert (writer["producer_id"], writer["txn_start_offset"]) == (row["producer_id"], 0)
    assert run("transactions", "list", "--older-than", "1h", "--json").json == []
    assert (
        run("transactions", "find-hanging", "paid", "--older-than", "0ms").err
        == "there are no hanging transactions\n"
    )
    assert run("transactions", "terminate", "pay", "--json").json == [
        {"transactional_id": "pay", "terminated": True}
    ]
    assert run("transactions", "describe", "pay", "--json").json[0]["state"] in ("CompleteAbort", "Empty")
    with pytest.raises(KafkaException):
        producer.commit_transaction(5)
    assert run("consume", "paid", "--from", "0", "--until", "end", "--read-committed", "--values").out == ""


def test_hanging_transaction_is_found_and_aborted(
    run: RunCommand, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("produce", "hung", "before")
    _append_hanging_transaction(broker, "hung", monkeypatch)
    (row,) = run("transactions", "find-hanging", "--older-than", "0ms", "--json").json
    assert (row["topic"], row["start_offset"]) == ("hung", 1)
    abort = ("transactions", "abort", "hung", "--partition", "0", "--start-offset")
    assert "open transactions start at offsets 1" in run(*abort, "0").sentence
    assert "would be aborted" in run(*abort, "1").out
    committed = ("consume", "hung", "--from", "0", "--until", "end", "--values", "--read-committed")
    assert len(run("transactions", "find-hanging", "hung", "--older-than", "0ms", "--json").json) == 1
    assert "was aborted" in run(*abort, "1", "--execute").out
    assert run("transactions", "find-hanging", "hung", "--older-than", "0ms", "--json").json == []
    run("produce", "hung", "after")
    assert run(*committed).out == "before\nafter\n"


def _append_hanging_transaction(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append a record of a transaction that is unknown to its coordinator (possible before KIP-890)."""
    with CommandClient(ClientSettings(servers_of(broker.bootstrap_servers))) as cluster:
        allocated = cluster.send(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), InitProducerIdResponse
        )
        batch = build(
            [(1, None, b"void", [])],
            producer_id=allocated.producer_id,
            producer_epoch=allocated.producer_epoch,
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
        response = cluster.send(request, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0


def test_transactions_errors_are_one_sentence(run: RunCommand) -> None:
    run("topics", "create", "no-txn")
    assert "kwire transactions list" in run("transactions", "describe", "nobody").sentence
    assert "kwire transactions list" in run("transactions", "terminate", "nobody").sentence
    assert "expected Ongoing" in run("transactions", "list", "--state", "Open").sentence
    assert (
        "the partition has no open transaction"
        in run("transactions", "abort", "no-txn", "--partition", "0", "--start-offset", "0").sentence
    )
    assert (
        "only partition 0, not 5"
        in run("transactions", "abort", "no-txn", "--partition", "5", "--start-offset", "0").sentence
    )
    beyond = run("transactions", "producers", "no-txn", "--partition", "5")
    assert "only partition 0, not 5" in beyond.sentence
    assert "expected 10m for ten minutes" in run("transactions", "list", "--older-than", "x").sentence
