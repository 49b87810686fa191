"""The public API of `kwire.testing`: names, parameters and types.

Within a major version from 1.0 on, no name in this list is removed and no parameter is removed.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterator
from typing import Any, get_args

import pytest

import kwire.testing
from kwire.wire.errors import ErrorCode
from kwire.wire.registry import API_VERSIONS, RequestHeader

KAFKA = """
    aio
    bootstrap_servers
    close()
    committed(group)
    create_topic(name, partitions, replication_factor, config)
    end_offsets(topic)
    group(name)
    lag(group, topic)
    new_name(prefix)
    new_topic(prefix, partitions, replication_factor, config)
    produce(topic, values, key, partition, headers, timestamp_ms)
    records(topic, partition, offset, count, uncommitted, timeout_s)
    topics()
    wait_until(condition, timeout_s, description)
"""
USERS = """
    client_config(user, mechanism, certificate, defect)
    create_token(owner, renewers, max_lifetime_ms, mechanism)
    set_acls(acls)
    tokens()
"""
NAMES = {
    "Kafka": KAFKA,
    "Broker": f"""
    {KAFKA}
    {USERS}
    advance(delay_ms)
    crash()
    denials(since_s)
    faults
    fill_disk()
    free_disk()
    hang()
    history()
    is_running
    log_dir
    requests
    restart()
    resume()
    start()
    stop()
""",
    "Cluster": f"""
    {KAFKA}
    {USERS}
    advance(delay_ms)
    brokers
    coordinator(group)
    disconnect(one, other)
    heal()
    history()
    isolate(broker_id)
    leader(topic, partition)
    log_dir
    move_leader(topic, to, partition)
    outages(seed)
    start()
    stop()
""",
    "Proxy": f"""
    {KAFKA}
    faults
    history()
    is_running
    requests
    start()
    stop()
""",
    "SimulatedCluster": """
    advance(delay_ms)
    bootstrap_servers
    brokers
    check()
    create_topic(name, partitions, config)
    heal()
    isolate(broker_id)
    leader(topic, partition)
    new_name(prefix)
    new_topic(prefix, partitions, config)
    now_s
    records(topic)
    report()
    run(program, timeout_s, kill_after_s)
    start()
    stop()
    stop_faults()
""",
    "Faults": """
    clear()
    delay(api, seconds, options)
    drop_response(api, options)
    ignore(api, options)
    random(seed, probability, options)
    return_error(api, error, options)
    truncate_response(api, options)
""",
    "Fault": """
    cancel()
    hits
    is_over
""",
    "Recorder": """
    clear()
    find(api, client_id, topic, partition, since_s)
    format(since_s, limit)
""",
    "History": """
    acknowledged_count
    anomalies(at_least_once)
    check(at_least_once, allow)
    consumer(consumer, name, group)
    expect_all_read(readers)
    longest_ack_gap_s(producer)
    of
    on_ack(value, offset)
    on_assign(group, member, partitions)
    on_commit(group, partition, offset, may_go_back)
    on_final_read(reader, records)
    on_poll(reader, records)
    on_reject(value)
    on_resend(value)
    on_revoke(group, member, partitions)
    on_seek(reader, partition, offset)
    on_send(producer, partition, value, is_idempotent, transaction)
    on_transaction_end(transaction, committed)
    producer(producer, name)
    read_final_records(kafka)
    set_final_records(records)
""",
    "Anomaly": """
    kind
    text
""",
    "Exchange": """
    api
    client_id
    connection
    duration_ms
    fault
    outcome
    partitions
    received_at_s
    request
    responded_at_s
    response
    response_bytes
    version
""",
    "Outages": "",
    "SimulatedBroker": """
    crash()
    is_running
    node_id
    start()
""",
    "Acl": """
    allow
    deny
    host
    is_prefixed
    operation
    permission
    principal
    resource_name
    resource_type
""",
    "Denial": """
    api
    client_id
    denied_by
    missing
""",
    "Group": """
    members
    state
""",
    "Member": """
    client_id
    id
    partitions
""",
    "TopicPartition": """
    partition
    topic
""",
    "ClientConfig": """
    bootstrap_servers
    confluent
    is_token
    java
    java_properties
    kafka_python
    mechanism
    password
    security_protocol
    tls
    username
""",
    "ClientTls": """
    authority
    certificate
    confluent()
    java()
    key
""",
    "Tls": """
    client_auth
    defect
""",
    "Token": """
    expires_ms
    id
    max_ms
    owner
    password
""",
    "Record": """
    headers
    key
    offset
    partition
    timestamp_ms
    topic
    value
""",
}
AWAITABLE = {"AioBroker", "AioCluster", "AioKafka", "AioProxy"}
"""The types of `aio`, whose methods are those of `Broker`, `Cluster`, `Kafka` and `Proxy`."""
TYPES = {
    "AnomalyKind",
    "ApiName",
    "ClientAuth",
    "Defect",
    "ErrorName",
    "FaultOptions",
    "Headers",
    "LookupTable",
    "OperationName",
    "Partition",
    "Process",
    "ReadRecord",
}
"""The types of parameters and results that are not classes with public members."""
OTHERS = {"ApiError", "ErrorCode", "SUPER_USER", "wait_until"}
STANDARD = {
    *vars(builtins),
    *(
        "Any",
        "Callable",
        "Coroutine",
        "Final",
        "Iterable",
        "Iterator",
        "Literal",
        "Mapping",
        "Self",
        "Sequence",
    ),
    *("TracebackType", "Unpack", "os"),
}
"""Names in annotations that Python itself defines."""
CREATED_BY_KWIRE = {"Exchange", "Fault", "Outages", "SimulatedBroker"}
"""Classes whose objects a test does not create."""
VARIABLES = {"T", "P"}
INSTANCES = {
    "Broker": kwire.testing.Broker(),
    "Cluster": kwire.testing.Cluster(),
    "Exchange": kwire.testing.Exchange(0.0, RequestHeader(3, 12, 1, "billing"), memoryview(b""), {}),
    "Fault": kwire.testing.Faults().drop_response("Produce"),
    "Proxy": kwire.testing.Proxy("localhost:1"),
    "SimulatedBroker": kwire.testing.SimulatedCluster(0).brokers[1],
    "SimulatedCluster": kwire.testing.SimulatedCluster(0),
}
"""Instances of the classes whose attributes are set in `__init__`."""


def public_names(name: str) -> set[str]:
    return {line.strip() for line in NAMES[name].splitlines() if line.strip()}


def with_parameters(kind: type, name: str) -> str:
    member = getattr(kind, name, None)
    if not inspect.isfunction(member):
        return name
    return f"{name}({', '.join(list(inspect.signature(member).parameters)[1:])})"


def test_module_exports_exactly_these_names() -> None:
    assert set(kwire.testing.__all__) == {*NAMES, *AWAITABLE, *TYPES, *OTHERS}
    assert all(hasattr(kwire.testing, name) for name in kwire.testing.__all__)
    assert not hasattr(kwire.testing, "Nothing")
    assert list(inspect.signature(kwire.testing.wait_until).parameters) == [
        "condition",
        "timeout_s",
        "description",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_public_members_exist_and_keep_their_parameters(name: str) -> None:
    kind: type = getattr(kwire.testing, name)
    there = {
        with_parameters(kind, member)
        for member in dir(INSTANCES.get(name, kind))
        if not member.startswith("_")
    }
    assert public_names(name) <= there


@pytest.mark.parametrize("name", NAMES)
def test_public_members_have_docstrings_and_return_types(name: str) -> None:
    kind: type = getattr(kwire.testing, name)
    assert kind.__doc__
    for line in public_names(name):
        member: Any = getattr(kind, line.partition("(")[0], None)
        if inspect.isfunction(member) or isinstance(member, property):
            assert inspect.getdoc(member), f"{name}.{line}"
            getter: Any = member
            getter = getattr(getter, "fget", getter)
            assert "return" in inspect.get_annotations(getter), f"{name}.{line}"


def annotations_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield each public member of a class with each of its annotations, and the parameters of the class."""
    kind: type = getattr(kwire.testing, name)
    if "__init__" in vars(kind) and name not in CREATED_BY_KWIRE:
        yield from ((name, text) for text in inspect.get_annotations(vars(kind)["__init__"]).values())
    for line in public_names(name):
        member: Any = inspect.getattr_static(kind, line.partition("(")[0], None)
        for wrapped in ("fget", "func", "__func__"):
            member = getattr(member, wrapped, member)
        if inspect.isfunction(member):
            yield from ((line, text) for text in inspect.get_annotations(member).values())
    for field, annotation in inspect.get_annotations(kind).items():
        yield (
            field,
            str(getattr(annotation, "__forward_arg__", annotation)),
        )  # typing.NamedTuple has ForwardRef


@pytest.mark.parametrize("name", NAMES)
def test_types_in_signatures_are_public(name: str) -> None:
    """A test suite can annotate everything that it passes and gets."""
    used = {
        (member, node.id)
        for member, text in annotations_of(name)
        for node in ast.walk(ast.parse(text.strip("'"), mode="eval"))
        if isinstance(node, ast.Name)
    }
    known = {*kwire.testing.__all__, *STANDARD, *VARIABLES}
    assert {(member, name) for member, name in used if name not in known and member[0] != "_"} == set()


def test_names_of_apis_and_errors_are_those_of_the_protocol() -> None:
    assert list(get_args(kwire.testing.ApiName)) == sorted(api.name for api in API_VERSIONS.values())
    assert set(get_args(kwire.testing.ErrorName)) == {code.name for code in ErrorCode} - {"NONE"}
