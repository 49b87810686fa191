"""The sections in the report of a failed test: requests, denials, faults, topics and groups of a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from kwire.host.system_time import sleep
from kwire.testing.broker import Broker
from kwire.testing.cluster import Cluster
from kwire.testing.embedded_broker import EmbeddedBroker
from kwire.testing.embedded_kafka import EmbeddedKafka
from kwire.testing.faults import Fault
from kwire.testing.request_report import report_requests
from kwire.testing.started_brokers import STARTED_BROKERS, Sections
from kwire.wire.errors import WireError
from kwire.wire.plural import plural

CALL_SECONDS: Final = 1.0
"""The timeout of each request for the state of a broker."""
STATE_SECONDS: Final = 2.0
"""The time limit for reading topics and groups. A report may take the timeout of one request longer."""


def report(
    kafka: EmbeddedKafka,
    brokers: Mapping[str, Broker],
    since_s: float,
    names: Iterable[str],
    *,
    is_own: bool,
    expects_running: bool = True,
) -> Iterator[tuple[str, str]]:
    """Yield the titles and texts of the sections about a broker or cluster. Never raises.

    `brokers` maps the suffix of section titles to the broker. The sections describe the time since
    `since_s`, in seconds since 1970. With `is_own`, they have all topics and groups, otherwise only those
    that the test has used, and those in `names`. With `expects_running`, a section reports that a broker is
    not running.
    """
    for suffix, broker in brokers.items():
        for title, read in (
            ("kwire requests", _requests),
            ("kwire denied requests", _denials),
            ("kwire faults", _faults),
        ):
            if text := _attempt(partial(read, broker, since_s)):
                yield f"{title}{suffix}", text
    kept = STARTED_BROKERS.state(kafka)
    if kept is not None:
        yield from kept
    elif not expects_running and not _is_running(kafka):
        return  # it has not started, or the test has stopped it
    elif is_own:
        yield from read_state(kafka)
    else:
        used = partial(_used_names, kafka, brokers.values(), since_s, names)
        yield from _state(kafka, used)


def read_state(kafka: EmbeddedKafka) -> Sections:
    """Return the sections about all topics and all groups of a broker or cluster. Never raises."""
    return list(_state(kafka, lambda: (None, None)))


def _attempt(read: Callable[[], str]) -> str:
    try:
        return read()
    except Exception as error:  # the report must not hide the failure of the test
        return f"not available: {error}"


def _requests(broker: Broker, since_s: float) -> str:
    return report_requests([one for one in broker.requests if one.received_at_s >= since_s])


def _denials(broker: Broker, since_s: float) -> str:
    return "\n".join(map(str, broker.denials(since_s)))


def _faults(broker: Broker, since_s: float) -> str:
    return "\n".join(map(_describe_fault, broker.faults.active_since(since_s)))


def _describe_fault(fault: Fault) -> str:
    limits = [
        f"{name} {value}"
        for name, value in (
            ("client id", fault.client_id),
            ("topic", fault.topic),
            ("partition", fault.partition),
        )
        if value is not None
    ]
    remaining = fault.remaining
    further = "all further requests" if remaining is None else plural(remaining, "further request")
    where = f" ({', '.join(limits)})" if limits else ""
    api = fault.api or "any request"
    return f"{api}{where}: {fault.description}: {plural(fault.hits, 'request')} so far, {further}"


def _state(
    kafka: EmbeddedKafka, choose: Callable[[], tuple[list[str] | None, list[str] | None]]
) -> Iterator[tuple[str, str]]:
    try:
        topics, groups = choose()
        if topics == [] and groups == []:
            return
        if not _is_running(kafka):
            yield "kwire topics", f"not available: the {type(kafka).__name__.lower()} is not running"
            return
        client = _client(kafka)
        try:
            found = client.read_state(topics, groups, STATE_SECONDS)
        finally:
            client.close()
    except Exception as error:  # as in _attempt
        yield "kwire topics", f"not available: {error}"
        return
    yield from (
        (title, text) for title, text in zip(("kwire topics", "kwire groups"), found, strict=True) if text
    )


def _is_running(kafka: EmbeddedKafka) -> bool:
    if isinstance(kafka, Cluster):
        return any(broker.is_running for broker in kafka.brokers.values())
    return isinstance(kafka, Broker) and kafka.is_running


def _client(kafka: EmbeddedKafka) -> Any:
    """Return a client with a short timeout. It is not the client that the test uses."""
    from kwire.client.security import parse_security
    from kwire.testing.blocking_client import BlockingClient

    properties = kafka._client_properties()
    embedded = getattr(kafka, "_embedded", None)
    if embedded is not None:
        embedded.check_alive()
        if not isinstance(embedded, EmbeddedBroker):
            return embedded.client(CALL_SECONDS, properties)
    return BlockingClient(kafka._own_bootstrap_servers(), CALL_SECONDS, sleep, parse_security(properties))


def _used_names(
    kafka: EmbeddedKafka, brokers: Iterable[Broker], since_s: float, names: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the topics and groups that the test has used."""
    topics = {*kafka.named_topics.since(since_s), *names}
    groups = {*kafka.named_groups.since(since_s), *names}
    for broker in brokers:
        for exchange in broker.requests:
            if exchange.received_at_s < since_s:
                continue
            topics.update(one.topic for one in exchange.partitions)
            try:
                request = exchange.request_message
            except WireError:
                continue
            for one in (request, *(getattr(request, "groups", None) or ())):
                group = getattr(one, "group_id", None)
                if isinstance(group, str):
                    groups.add(group)
    return sorted(topics), sorted(groups)
