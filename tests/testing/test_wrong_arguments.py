"""Wrong names, ids, partitions and types: each fails with a sentence, never with an error of internals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kwire.testing import Broker, Cluster, History, Kafka, SimulatedCluster
from kwire.testing.containers import KafkaContainer
from kwire.testing.lookup_table import LookupTable
from kwire.wire.errors import ApiError


def check(kind: type[BaseException], sentence: str, call: Callable[[], object]) -> None:
    """Check that a call fails with this kind of error and exactly this sentence, which is not quoted."""
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == sentence
    assert not isinstance(caught.value, KeyError | IndexError | AttributeError)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("orders", partitions=2)
        broker.produce("orders", "first")
        yield broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        cluster.create_topic("orders")
        yield cluster


@pytest.fixture(scope="module")
def simulated() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(1, faults=False) as cluster:
        cluster.create_topic("orders")
        yield cluster


BROKER_CALLS: list[tuple[type[BaseException], str, Callable[[Broker], object]]] = [
    (LookupError, "topic orders has partitions 0 to 1, not 7", lambda b: b.records("orders", partition=7)),
    (
        LookupError,
        "topic orders has partitions 0 to 1, not 7",
        lambda b: b.produce("orders", "x", partition=7),
    ),
    (TypeError, "topic is a str, not None", lambda b: b.records(None)),  # type: ignore[arg-type]
    (TypeError, "topic is a str, not 5", lambda b: b.end_offsets(5)),  # type: ignore[arg-type]
    (TypeError, "partition is a whole number, not '0'", lambda b: b.produce("orders", "x", partition="0")),  # type: ignore[arg-type]
    (TypeError, "count is a whole number, not '1'", lambda b: b.records("orders", count="1")),  # type: ignore[arg-type]
    (TypeError, "group is a str, not 5", lambda b: b.committed(5)),  # type: ignore[arg-type]
    (TypeError, "name is a str, not None", lambda b: b.group(None)),  # type: ignore[arg-type]
    (TypeError, "topic is a str, not None", lambda b: b.lag("billing", None)),  # type: ignore[arg-type]
    (TypeError, "name is a str, not 5", lambda b: b.create_topic(5)),  # type: ignore[arg-type]
    (TypeError, "partitions is a whole number, not '3'", lambda b: b.new_topic(partitions="3")),  # type: ignore[arg-type]
    (
        TypeError,
        "configs map names to values, such as {'retention.ms': 9}, not ['retention.ms']",
        lambda b: b.create_topic("bills", config=["retention.ms"]),  # type: ignore[arg-type]
    ),
    (
        TypeError,
        "a header is a name and a value, such as ('tenant', b'7'), not 'tenant'",
        lambda b: b.produce("orders", "x", headers=["tenant"]),  # type: ignore[list-item]
    ),
    (
        TypeError,
        "headers are a dict, or a list of pairs (name, value), not 'tenant'",
        lambda b: b.produce("orders", "x", headers="tenant"),  # type: ignore[arg-type]
    ),
    (
        TypeError,
        "timestamp_ms is a whole number, not 'now'",
        lambda b: b.produce("orders", "x", timestamp_ms="now"),  # type: ignore[arg-type]
    ),
    (
        LookupError,
        "there is no partition of orders with number 7: use one of 0, 1",
        lambda b: b.end_offsets("orders")[7],
    ),
    (
        LookupError,
        "there is no committed offset of group billing for ('orders', 0): none exists",
        lambda b: b.committed("billing")["orders", 0],  # type: ignore[index]
    ),
    (
        ValueError,
        "there is no API 'produce': did you mean 'Produce'?",
        lambda b: b.faults.return_error("produce", "NOT_LEADER_OR_FOLLOWER"),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        "'NOT_LEADER' is not a Kafka error: did you mean 'NOT_LEADER_OR_FOLLOWER'?",
        lambda b: b.faults.return_error("Produce", "NOT_LEADER"),  # type: ignore[arg-type]
    ),
    (TypeError, "api is a str, not None", lambda b: b.requests.find(None)),  # type: ignore[arg-type]
    (TypeError, "client_id is a str, not 5", lambda b: b.faults.drop_response("Produce", client_id=5)),  # type: ignore[arg-type]
    (
        ValueError,
        "times='1': pass a number of requests, or None for all",
        lambda b: b.faults.drop_response("Produce", times="1"),  # type: ignore[arg-type]
    ),
    (TypeError, "seconds is a number of seconds, not None", lambda b: b.faults.delay("Produce", None)),  # type: ignore[arg-type]
    (
        ValueError,
        "probability='0.1': pass a share of the requests, above 0 and at most 1",
        lambda b: b.faults.random(1, probability="0.1"),  # type: ignore[arg-type]
    ),
    (
        LookupError,
        "there are no users: pass users={'alice': 'alice-secret'}",
        lambda b: b.create_token(),
    ),
]


@pytest.mark.parametrize(("kind", "sentence", "call"), BROKER_CALLS, ids=[one[1] for one in BROKER_CALLS])
def test_wrong_argument_of_a_broker(
    broker: Broker, kind: type[BaseException], sentence: str, call: Callable[[Broker], object]
) -> None:
    check(kind, sentence, lambda: call(broker))


def test_unknown_topic_is_an_error_of_kafka(broker: Broker) -> None:
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: there is no topic bills"):
        broker.records("bills", timeout_s=0.1)


def test_wrong_ids_of_a_cluster(cluster: Cluster) -> None:
    unknown = "there is no broker 9: use one of 1, 2, 3"
    check(LookupError, unknown, lambda: cluster.brokers[9])
    check(LookupError, unknown, lambda: cluster.isolate(9))
    check(LookupError, unknown, lambda: cluster.disconnect(1, 9))
    check(LookupError, "there is no broker '1': use one of 1, 2, 3", lambda: cluster.brokers["1"])  # type: ignore[index]
    check(LookupError, "topic orders has only partition 0, not 7", lambda: cluster.leader("orders", 7))
    check(TypeError, "partition is a whole number, not '0'", lambda: cluster.leader("orders", "0"))  # type: ignore[arg-type]
    check(TypeError, "group is a str, not None", lambda: cluster.coordinator(None))  # type: ignore[arg-type]
    check(TypeError, "to is a whole number, not '1'", lambda: cluster.move_leader("orders", "1"))  # type: ignore[arg-type]
    assert 9 not in cluster.brokers
    assert cluster.brokers.get(9) is None


def test_cluster_that_is_not_running() -> None:
    down = "the cluster is not running: call start(), or use it in a with statement"
    cluster = Cluster()
    check(RuntimeError, down, lambda: cluster.leader("orders"))
    check(RuntimeError, down, cluster.topics)
    check(RuntimeError, down, lambda: cluster.outages(seed=1))
    check(LookupError, "there is no broker 1: none exists", lambda: cluster.brokers[1])
    check(TypeError, "size is the number of brokers, not {'a': 1}", lambda: Cluster({"a": 1}))  # type: ignore[arg-type]
    simulated = SimulatedCluster(1)
    calls: list[Callable[[], object]] = [
        simulated.brokers[1].crash,
        simulated.brokers[1].start,
        lambda: simulated.leader("orders"),
        lambda: simulated.records("orders"),
        lambda: simulated.isolate(1),
        lambda: simulated.create_topic("orders"),
        lambda: simulated.advance(1),
        simulated.stop_faults,
        simulated.check,
    ]
    for call in calls:
        check(RuntimeError, down, call)


def test_wrong_arguments_of_a_simulated_cluster(simulated: SimulatedCluster) -> None:
    unknown = "there is no broker 9: use one of 1, 2, 3"
    check(LookupError, unknown, lambda: simulated.brokers[9])
    check(LookupError, unknown, lambda: simulated.isolate(9))
    no_topic = "UNKNOWN_TOPIC_OR_PARTITION: there is no topic bills: use 'orders'"
    check(ApiError, no_topic, lambda: simulated.leader("bills"))
    check(ApiError, no_topic, lambda: simulated.records("bills"))
    check(LookupError, "topic orders has only partition 0, not 7", lambda: simulated.leader("orders", 7))
    check(TypeError, "partition is a whole number, not '0'", lambda: simulated.leader("orders", "0"))  # type: ignore[arg-type]
    check(TypeError, "topic is a str, not None", lambda: simulated.records(None))  # type: ignore[arg-type]
    check(TypeError, "name is a str, not 5", lambda: simulated.create_topic(5))  # type: ignore[arg-type]
    check(TypeError, "delay_ms is a whole number of milliseconds, not None", lambda: simulated.advance(None))  # type: ignore[arg-type]
    started = "a simulated cluster can be started once: create another SimulatedCluster"
    check(RuntimeError, started, simulated.start)
    program = asyncio.sleep(1)
    seconds = "timeout_s is a number of seconds, not '5'"
    check(TypeError, seconds, lambda: simulated.run(program, timeout_s="5"))  # type: ignore[arg-type]
    program.close()
    configs = "configs map names to values, such as {'retention.ms': 9}, not ['a']"
    check(TypeError, configs, lambda: SimulatedCluster(1, ["a"]))  # type: ignore[arg-type]


def test_wrong_field_of_a_request(broker: Broker) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "billing"})
    producer.produce("orders", b"second", partition=0)
    assert producer.flush(20) == 0
    [produced] = broker.requests.find("Produce", client_id="billing")
    with pytest.raises(
        LookupError, match=r"^there is no field of ProduceRequest in version \d+ with name 'ack'"
    ):
        produced.request["ack"]
    with pytest.raises(
        LookupError, match="with name 'offset': use one of 'index', 'error_code', 'base_offset'"
    ):
        produced.response["responses"][0]["partition_responses"][0]["offset"]  # type: ignore[index]
    assert produced.request["acks"] == -1


def test_wrong_user_and_mechanism_of_a_token() -> None:
    with Broker(users={"alice": "alice-secret"}) as broker:
        check(LookupError, "there is no user 'bob': use one of alice", lambda: broker.create_token("bob"))
        check(
            LookupError,
            "tokens have no mechanism 'PLAIN': use one of 'SCRAM-SHA-256', 'SCRAM-SHA-512'",
            lambda: broker.create_token("alice", mechanism="PLAIN"),
        )
        renewers = "renewers are a list of str, not 'bob'"
        check(TypeError, renewers, lambda: broker.create_token("alice", renewers="bob"))
        each = "each of renewers is a str, not 5"
        check(TypeError, each, lambda: broker.create_token("alice", renewers=[5]))  # type: ignore[list-item]


def test_wrong_observations_of_a_history() -> None:
    history = History()
    unsent = "b'bill' has not been sent: call on_send with this value first"
    check(LookupError, unsent, lambda: history.on_ack(b"bill", 1))
    check(LookupError, unsent, lambda: history.on_resend(b"bill"))
    check(LookupError, unsent, lambda: history.on_reject(b"bill"))
    history.on_send("billing", ("orders", 0), b"bill")
    check(TypeError, "offset is a whole number, not None", lambda: history.on_ack(b"bill", None))  # type: ignore[arg-type]
    check(
        TypeError,
        "a record is a partition, an offset and a value, such as (('orders', 0), 17, b'bill'), not 1",
        lambda: history.on_poll("reader", [1]),  # type: ignore[list-item]
    )
    final = "final records are those that Kafka.records returns, not 1"
    check(TypeError, final, lambda: history.set_final_records([1]))  # type: ignore[list-item]
    history.check()
    unknown = "there is no anomaly 'duplicate': use 'lost', 'duplicated', "
    with pytest.raises(ValueError, match=unknown):
        history.check(allow={"duplicate"})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Broker, Cluster])
def test_wrong_limits_of_the_recorder(kind: type[Broker | Cluster]) -> None:
    wrong: Any = "many"
    zero = "max_recorded_requests=0: pass 1 or more"
    check(ValueError, zero, lambda: kind(max_recorded_requests=0))
    whole = "max_recorded_bytes is a whole number, not 'many'"
    check(TypeError, whole, lambda: kind(max_recorded_bytes=wrong))


def test_wrong_arguments_of_a_container_and_of_kafka() -> None:
    container = KafkaContainer()
    check(ValueError, "port x is not exposed: use 9093", lambda: container.get_exposed_port("x"))
    port = "a port is a number, such as 9093, not 'x'"
    check(ValueError, port, lambda: container.with_bind_ports("x", 1))
    check(TypeError, "cluster_id is a str, not 5", lambda: container.with_cluster_id(5))  # type: ignore[arg-type]
    check(TypeError, "bootstrap_servers is a str, not None", lambda: Kafka(None))  # type: ignore[arg-type]


def test_lookup_table_shows_a_limited_number_of_keys() -> None:
    table = LookupTable(dict.fromkeys(range(1_000))).named("topic")
    with pytest.raises(LookupError, match=r"^there is no topic -1: use one of 0, 1, .*, 19, or 980 more$"):
        table[-1]
