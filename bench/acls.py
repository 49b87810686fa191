"""Authorization: the CPU that ACLs add to a Produce and to a Fetch request, and the time to load 10,000 ACLs.

Each broker runs three times: without an authorizer, with 10 and with 10,000 ACLs. The clients are anonymous,
and not super users. A request is as small as possible: it writes or reads one record.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from bench.brokers import BROKERS, Broker
from bench.figures import Figure, Samples
from bench.flush import produce_request
from bench.raw_connections import RawConnections, request, string

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
COUNTS: Final = {"without an authorizer": 0, "with 10 ACLs": 10, "with 10,000 ACLs": 10_000}
TOPIC: Final = "authorized"
CONNECTIONS: Final = 8
PER_REQUEST: Final = 1_000
"""The ACLs in one CreateAcls request."""
WARM_UP_SECONDS: Final = 4.0
FETCH: Final = (1, 4)


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure one broker after the other in each round. Every second round has the reverse order."""
    figures: dict[str, Figure] = {}
    requests = {"Produce": produce_request(TOPIC, 0), "Fetch": _fetch()}
    with _running(names, figures) as brokers:
        for broker in brokers.values():
            for sent in requests.values():
                _cost_us(broker, sent, WARM_UP_SECONDS)
        for number in range(rounds):
            for key in brokers if number % 2 == 0 else reversed(brokers):
                name, label = key
                for api, sent in requests.items():
                    samples = Samples(figures, name)
                    samples.add(f"{api} {label}, broker's CPU", "µs", _cost_us(brokers[key], sent, seconds))
    return list(figures.values())


@contextmanager
def _running(names: list[str], figures: dict[str, Figure]) -> Iterator[dict[tuple[str, str], Broker]]:
    with ExitStack() as stack:
        brokers = {}
        for label, count in COUNTS.items():
            for name in names:
                settings = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
                broker = BROKERS[name](settings if count else {})
                stack.callback(broker.discard)
                broker.start()
                took_s = _prepare(broker, count)
                if count > PER_REQUEST:
                    samples = Samples(figures, name)
                    samples.add("create 10,000 ACLs", "s", took_s)
                    broker.stop()
                    begun = broker.start()
                    samples.add("start with 10,000 ACLs", "s", begun)
                brokers[name, label] = broker
        yield brokers


def _prepare(broker: Broker, count: int) -> float:
    """Create the topic with one record, and the ACLs. Return the seconds until all ACLs are in force."""
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result(30)
    producer = Producer(client)
    producer.produce(TOPIC, b"x" * 100, partition=0)
    if producer.flush(30):
        raise RuntimeError(f"{broker.name} did not acknowledge a record in 30 s")
    acls = [
        _acl(TOPIC, AclOperation.ALL),
        *(_acl(f"other-{one}", AclOperation.READ) for one in range(1, count)),
    ]
    begun = time.perf_counter()
    if not count:
        return 0.0
    for at in range(0, count, PER_REQUEST):
        for created in admin.create_acls(acls[at : at + PER_REQUEST]).values():
            created.result(30)
    anything = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    while len(admin.describe_acls(anything).result(30)) < count:
        time.sleep(0.01)
    return time.perf_counter() - begun


def _acl(topic: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        *(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*"),
        *(operation, AclPermissionType.ALLOW),
    )


def _fetch() -> bytes:
    partition = struct.pack(">iiqi", 1, 0, 0, 1)
    topics = struct.pack(">i", 1) + string(TOPIC) + partition
    return request(*FETCH, struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + topics)


def _cost_us(broker: Broker, sent: bytes, seconds: float) -> float:
    """Send a request repeatedly for `seconds` on each connection. Return the broker's CPU for one in µs."""
    with RawConnections(broker, CONNECTIONS) as connections:
        begun, cpu_begun, count = time.perf_counter(), broker.cpu_seconds(), 0
        for number in range(CONNECTIONS):
            connections.send(number, sent)
        while time.perf_counter() - begun < seconds:
            for number, response in connections.responses(1.0):
                if len(response) < 40:
                    raise RuntimeError(f"{broker.name} sent no result: {response.hex()}")
                count += 1
                connections.send(number, sent)
        missing = CONNECTIONS
        while missing:
            missing -= sum(1 for _ in connections.responses(10.0))
        return (broker.cpu_seconds() - cpu_begun) / (count + CONNECTIONS) * 1e6
