"""The requests in the report of a failed test: errors and faults stand out, and routine requests are counted.

    13:11:46.801 ! Produce 9 from billing: {topic_data: [{name: 'orders', partition_data: [{index: 0, ...
        after 1.6 ms, injected fault: returned INVALID_RECORD: {responses: [{name: 'orders', ...
        3 times, the last at 13:11:47.020
    also 2 ApiVersions, 3 Metadata, 17 Fetch without records

Each message has about `MAX_CHARACTERS` characters. `print(broker.requests)` shows all requests in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kwire.host.system_time import localtime, strftime
from kwire.testing.exchange import Exchange, format_message, format_value, message_fields, truncated
from kwire.wire.batch import Record
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.plural import plural
from kwire.wire.schema import Message, fields_of

MAX_CHARACTERS: Final = 300
"""The number of characters of a request or response beyond which it is shortened."""
MAX_READ: Final = 2_000
"""The maximum number of requests that a report decodes, so that it is ready in a second."""
MAX_SHOWN: Final = 100
"""The maximum number of different requests that a report shows."""
MAX_ELEMENTS: Final = 3
"""The number of elements of a list that a shortened message shows."""
MAX_VALUE: Final = 40
"""The number of characters of a value in a shortened message."""
ROUTINE_APIS: Final = {
    "ApiVersions",
    "ConsumerGroupHeartbeat",
    "FindCoordinator",
    "GetTelemetrySubscriptions",
    "Heartbeat",
    "Metadata",
    "PushTelemetry",
    "SaslAuthenticate",
    "SaslHandshake",
}
"""APIs whose requests are only counted, unless they have an error, a fault or no response."""
USUAL_OUTCOMES: Final = "the client disconnected", "no response requested"
"""Outcomes without a response that are no failure."""
UNIMPORTANT_FIELDS: Final = {
    "acks",
    "aborted_transactions",
    "client_software_name",
    "client_software_version",
    "cluster_id",
    "controller_id",
    "current_leader",
    "current_leader_epoch",
    "diverging_epoch",
    "fetch_offset_epoch",
    "isolation_level",
    "last_fetched_epoch",
    "leader_epoch",
    "log_append_time_ms",
    "log_start_offset",
    "max_bytes",
    "max_wait_ms",
    "min_bytes",
    "partition_max_bytes",
    "preferred_read_replica",
    "rack_id",
    "rebalance_timeout_ms",
    "replica_id",
    "session_epoch",
    "session_id",
    "session_timeout_ms",
    "snapshot_id",
    "throttle_time_ms",
    "timeout_ms",
    "topic_id",
    "topics_to_forget",
}
"""Fields that a shortened message omits."""


def report_requests(exchanges: Sequence[Exchange], *, limit: int = MAX_SHOWN) -> str:
    """Return the text for these exchanges, with at most the last `limit` different requests in full."""
    shown: list[tuple[tuple[str, ...], list[Exchange]]] = []
    routine: Counter[str] = Counter()
    left_off = max(0, len(exchanges) - MAX_READ)
    for exchange in exchanges[left_off:]:
        if kind := _routine_kind(exchange):
            routine[kind] += 1
            continue
        key = _key(exchange)
        if shown and shown[-1][0] == key:
            shown[-1][1].append(exchange)
        else:
            shown.append((key, [exchange]))
    left_off += sum(len(same) for _, same in shown[:-limit])
    lines = [f"({plural(left_off, 'earlier request')})"] if left_off else []
    lines += ["\n".join(_lines(key, same)) for key, same in shown[-limit:]]
    if routine:
        counts = ", ".join(f"{count} {kind}" for kind, count in routine.items())
        lines.append(f"also {counts}" if lines else f"only {counts}")
    return "\n".join(lines)


def _routine_kind(exchange: Exchange) -> str:
    """Return the name under which an exchange is counted; empty if the report shows it."""
    result = exchange.result()
    if exchange.fault or (exchange.api != "Fetch" and exchange.api not in ROUTINE_APIS):
        return ""
    if result is None:
        return "Fetch in progress" if exchange.api == "Fetch" else ""
    if exchange.api == "Fetch" and result.outcome in USUAL_OUTCOMES:
        return "Fetch in progress when the client disconnected"
    message = exchange.response_message
    if message is None or result.outcome or _has_error(message):
        return ""
    if exchange.api == "Fetch":
        return "" if _has_records(message) else "Fetch without records"
    if exchange.api == "ConsumerGroupHeartbeat" and getattr(message, "assignment", None) is not None:
        return ""
    return exchange.api


def _lines(key: tuple[str, ...], same: list[Exchange]) -> Iterator[str]:
    first = same[0]
    client, mark, request, outcome = key
    after = f"after {first.duration_ms:.1f} ms" if first.result() is not None else ""
    yield f"{_time(first)} {mark}{client}: {request}"
    yield f"    {after}{outcome}"
    if len(same) > 1:
        yield f"    {plural(len(same), 'time')}, the last at {_time(same[-1])}"


def _key(exchange: Exchange) -> tuple[str, ...]:
    """Return what is equal for repetitions of a request: the client and API, the request, and the outcome."""
    is_failed = bool(exchange.fault or (exchange.outcome and exchange.outcome not in USUAL_OUTCOMES))
    try:
        request = _shortened(exchange.request_message, exchange)
    except WireError as error:
        request = f"invalid request: {error}"
    result = exchange.result()
    fault = f", injected fault: {exchange.fault}" if exchange.fault else ""
    if result is None:
        outcome = f"no response yet{fault}"
    elif result.outcome:
        outcome = f"{fault}: {result.outcome}"
    else:
        message = exchange.response_message
        if message is None:
            outcome = f"{fault}: {plural(result.response_bytes, 'byte')}"
        else:
            is_failed = is_failed or _has_error(message)
            outcome = f"{fault}: {_shortened(message, exchange)}"
    client = f"{exchange.api} {exchange.version} from {exchange.client_id or '(no client id)'}"
    return client, "! " if is_failed else "", request, outcome


def _time(exchange: Exchange) -> str:
    at_s = exchange.received_at_s
    return strftime("%H:%M:%S", localtime(at_s)) + f".{at_s % 1:.3f}"[2:]


def _has_error(message: Message) -> bool:
    """Return whether a response has an error code at any depth."""
    for one in fields_of(type(message)):
        value = getattr(message, one.name)
        if one.name == "error_code":
            if value:
                return True
            continue
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Message) and _has_error(inner):
                return True
    return False


def _has_records(response: Any) -> bool:
    return any(one.records for topic in response.responses for one in topic.partitions)


def _shortened(message: Message, exchange: Exchange) -> str:
    """Format a message. If it is too long, omit fields of little interest, and then elements and the end."""
    text = format_message(message, exchange.version, exchange.topic_names)
    if len(text) <= MAX_CHARACTERS:
        return text
    fields = message_fields(message, exchange.version, exchange.topic_names)
    return truncated(_compact(fields) or text, MAX_CHARACTERS)


def _compact(value: object) -> str:
    """Format a value of a message without its less interesting parts. Elements with errors come first."""
    if isinstance(value, Mapping):
        shown = [
            f"{name}: {_compact(one)}"
            for name, one in sorted(value.items(), key=lambda pair: pair[0] != "error_code")
            if name not in UNIMPORTANT_FIELDS
            and one not in (None, "", b"", [], -1)
            and not _is_success(name, one)
        ]
        return f"{{{', '.join(shown)}}}"
    if isinstance(value, list):
        ordered = sorted(value, key=lambda one: not _fails(one))
        shown = [_compact(one) for one in ordered[:MAX_ELEMENTS]]
        more = [f"and {len(value) - MAX_ELEMENTS} more"] if len(value) > MAX_ELEMENTS else []
        return f"[{', '.join([*shown, *more])}]"
    if isinstance(value, Record):
        return f"{value.offset}: {_compact(value.key)} = {_compact(value.value)}"
    if value is None:
        return "null"
    if isinstance(value, ErrorCode):
        return value.name
    if isinstance(value, bytes | memoryview | str):
        return format_value(value, MAX_VALUE)
    return str(value)


def _is_success(name: str, value: object) -> bool:
    return name == "error_code" and value == 0


def _fails(value: object) -> bool:
    """Return whether the fields of a message have an error code at any depth."""
    if isinstance(value, Mapping):
        return any(bool(one) if name == "error_code" else _fails(one) for name, one in value.items())
    return isinstance(value, list) and any(map(_fails, value))
