"""A user's test suite with annotations, for `test_types.py`. It imports only `kwire.testing` from kwire."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Callable, Iterator, Mapping
from typing import assert_type

import pytest

from kwire.testing import (
    SUPER_USER,
    Acl,
    AioBroker,
    AioCluster,
    AioKafka,
    AioProxy,
    Anomaly,
    AnomalyKind,
    ApiError,
    ApiName,
    Broker,
    ClientAuth,
    ClientConfig,
    ClientTls,
    Cluster,
    Defect,
    Denial,
    ErrorCode,
    ErrorName,
    Exchange,
    Fault,
    FaultOptions,
    Faults,
    Group,
    Headers,
    History,
    Kafka,
    LookupTable,
    Member,
    OperationName,
    Outages,
    Partition,
    Process,
    Proxy,
    ReadRecord,
    Record,
    Recorder,
    SimulatedBroker,
    SimulatedCluster,
    Tls,
    Token,
    TopicPartition,
    wait_until,
)

APIS: tuple[ApiName, ...] = ("Produce", "Fetch")
ERRORS: Mapping[ApiName, ErrorName] = {"Produce": "NOT_LEADER_OR_FOLLOWER"}
ALLOWED: set[AnomalyKind] = {"duplicated", "reordered"}
READ: OperationName = "READ"
PROCESS: Process = "thread"
CLIENT_AUTH: ClientAuth = "required"
DEFECT: Defect = "expired"
ORDERS: Partition = ("orders", 0)
FIRST: ReadRecord = (ORDERS, 0, b"first")
USERS = {"alice": "alice-secret"}


@pytest.fixture(scope="session")
def kwire_config() -> Mapping[str, object]:
    return {"num.partitions": 1}


@pytest.fixture
def faults(kwire: Broker) -> Iterator[Faults]:
    yield kwire.faults
    kwire.faults.clear()


@pytest.fixture
def new_broker() -> Callable[[], Broker]:
    return lambda: Broker(
        users=USERS,
        acls=[Acl.allow("alice", READ, topic="orders"), Acl.deny("*", "DELETE", topic="*")],
        process=PROCESS,
    )


def describe(exchange: Exchange) -> str:
    fields: Mapping[str, object] = exchange.request
    assert fields
    return f"{exchange.api} {exchange.version}: {exchange.outcome}, {exchange.duration_ms} ms"


def test_records(kwire: Broker, kwire_topic: str, kwire_group: str) -> None:
    [produced] = kwire.produce(kwire_topic, "first", key="customer 7", headers={"trace": "1"})
    records = kwire.records(kwire_topic, count=1)
    assert_type(records, list[Record])
    headers: Headers = records[0].headers
    assert [*headers] == [("trace", b"1")]
    assert records == [produced]
    group: Group = kwire.group(kwire_group)
    members: list[Member] = group.members
    assert members == []
    assert_type(kwire.committed(kwire_group), dict[TopicPartition, int])
    assert_type(kwire.wait_until(lambda: kwire.topics()), list[str])
    assert wait_until(lambda: len(kwire.topics())) > 0


def test_faults(kwire: Broker, faults: Faults, kwire_topic: str) -> None:
    options: FaultOptions = {"times": 2, "topic": kwire_topic}
    fault: Fault = faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", **options)
    for api, error in ERRORS.items():
        faults.return_error(api, error, times=None, client_id="billing")
    for api in APIS:
        faults.delay(api, 0.5)
    faults.return_error("Fetch", ErrorCode.KAFKA_STORAGE_ERROR)
    with pytest.raises(ValueError):
        faults.return_error("Prodce", 6)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        faults.return_error("Produce", "NOT_LEADER")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        kwire.requests.find("produce")  # type: ignore[arg-type]
    assert fault.hits == 0


def test_requests(kwire: Broker) -> None:
    recorder: Recorder = kwire.requests
    found = recorder.find("Produce", topic="orders", since_s=0.0)
    assert_type(found, list[Exchange])
    assert [describe(exchange) for exchange in found] == []


def test_errors(kwire: Broker) -> None:
    with pytest.raises(ApiError) as raised:
        kwire.create_topic("orders", partitions=0)
    assert raised.value.code is ErrorCode.INVALID_PARTITIONS


def test_users(new_broker: Callable[[], Broker]) -> None:
    with new_broker() as broker:
        config: ClientConfig = broker.client_config("alice")
        assert_type(config.tls, ClientTls | None)
        denials: list[Denial] = broker.denials()
        assert_type(broker.create_token("alice"), ClientConfig)
        tokens: list[Token] = broker.tokens()
        assert (denials, [token.owner for token in tokens]) == ([], ["alice"])
        assert config.username != SUPER_USER
    assert Tls(client_auth=CLIENT_AUTH, defect=DEFECT).defect == DEFECT


def test_history(kwire: Broker) -> None:
    history = History()
    history.on_send("producer 1", TopicPartition("orders", 0), b"first")
    history.on_poll("reader 1", [FIRST])
    found: list[Anomaly] = history.anomalies()
    kinds: set[AnomalyKind] = {anomaly.kind for anomaly in found}
    assert kinds <= {"lost after read", "read before commit"}
    kwire.history().check(allow=ALLOWED)


def crash_all(brokers: Mapping[int, Broker]) -> None:
    for broker in brokers.values():
        broker.crash()


def end_outages(cluster: Cluster) -> Outages:
    with cluster.outages(7) as outages:
        return outages


def test_cluster() -> None:
    cluster = Cluster(1)
    crash_all(cluster.brokers)
    leader: Callable[[str], Broker] = cluster.leader
    assert callable(leader)
    assert_type(cluster.aio, AioCluster)
    kafka: Kafka = cluster
    assert kafka.new_name("orders").startswith("orders")


async def count_records(broker: Broker, proxy: Proxy, kafka: Kafka) -> int:
    assert_type(broker.aio, AioBroker)
    assert_type(proxy.aio, AioProxy)
    assert_type(kafka.aio, AioKafka)
    records = await broker.aio.records("orders", count=1)
    assert_type(records, list[Record])
    return len(records)


def test_simulation() -> None:
    cluster = SimulatedCluster(1, faults=False)
    brokers: LookupTable[int, SimulatedBroker] = cluster.brokers
    assert [*brokers] == [1, 2, 3]
