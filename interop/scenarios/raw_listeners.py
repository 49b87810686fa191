"""Dynamic listeners: added, removed, moved to another address, rejected, and restored at the next start.

The broker responds to a change before the change has all its effects. So the scenarios poll the effects until
they no longer change. Ports are recorded by name. One case is missing: the stored listeners give a static
listener another address, and a later change removes this listener. Apache Kafka then looks for an acceptor at
the stored address, finds none, and leaves the port open until the broker stops.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

from interop.brokers import Broker, free_port, responds_to_api_versions
from interop.raw import comparable, create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_config_values import APPEND, BROKER, DELETE, SET, SUBTRACT, change, entries

LISTENERS, MAP = "listeners", "listener.security.protocol.map"
KEYS = (LISTENERS, MAP)
TWO = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
THREE = f"{TWO},EXTRA:PLAINTEXT"
FOUR = f"{THREE},MORE:PLAINTEXT"
HERE = "127.0.0.1"
TOPIC = "raw-listeners"
PAUSE_S = 0.5
ANSWER_S = 5.0
"""The time in seconds within which an open port must respond."""
SECONDS = 60.0

Settings = Mapping[str, str | None]

CHECKED: list[dict[str, str]] = [
    {LISTENERS: "{now},EXTRA://127.0.0.1:{A}"},
    *(
        {LISTENERS: "{now},EXTRA://" + address, MAP: THREE}
        for address in (
            *(
                "127.0.0.1:{A}",
                "0.0.0.0:{A}",
                ":{A}",
                "[::1]:{A}",
                "[::1]:{own}",
                "::1:{own}",
                "no.such.host:1",
            ),
            *("127.0.0.1:{own}", "127.0.0.2:{own}", "localhost:{own}", ":{own}", "127.0.0.1:{controller}"),
            *("127.0.0.1:0", "127.0.0.1:-1", "127.0.0.1:65536", "127.0.0.1:2147483648", "127.0.0.1:x"),
            *("127.0.0.1", "", "a b:{A}", "a/b:{A}", "[::1:{A}", "127.0.0.1:+1", "127.0.0.1: 1"),
        )
    ),
    *(
        {LISTENERS: text, MAP: THREE}
        for text in (
            *("", "x", ",", "x:y", "://", "://:1", "PLAINTEXT", "PLAINTEXT://127.0.0.1:{own}"),
            *("CONTROLLER://127.0.0.1:{controller}", "EXTRA://127.0.0.1:{A}"),
            "EXTRA://127.0.0.1:{A},CONTROLLER://127.0.0.1:{controller}",
            *("{now},PLAINTEXT://127.0.0.1:{A}", "{now},plaintext://127.0.0.1:{A}", "{now},NONE://:{A}"),
            *("{now},{now}", "{now},EXTRA://:{A},EXTRA://:{B}", "{now},http://EXTRA://:{A}"),
            "plaintext://127.0.0.1:{own},controller://127.0.0.1:{controller}",
            "PLAINTEXT://127.0.0.1:{A},CONTROLLER://127.0.0.1:{controller}",
            "PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{A}",
            "CONTROLLER://127.0.0.1:{controller},PLAINTEXT://127.0.0.1:{own}",
        )
    ),
    {LISTENERS: "{now},EXTRA://[::1]:{A},MORE://127.0.0.1:{A}", MAP: FOUR},
    {LISTENERS: "{now},EXTRA://localhost:{A},MORE://:{A}", MAP: FOUR},
    {LISTENERS: "{now},EXTRA://[::1]:{own},MORE://:{own}", MAP: FOUR},
    *(
        {MAP: text}
        for text in (
            *("", ",", "x", "x:", ":x", ":PLAINTEXT", "PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", TWO),
            *(f"{TWO},EXTRA:NOPE", f"{TWO},EXTRA:", f"{TWO},EXTRA:SSL", f"{TWO},EXTRA:a:SSL", f"{TWO},,"),
            *(f"{TWO},PLAINTEXT:SSL", f"{TWO},CONTROLLER:SSL", "plaintext:plaintext, controller : plaintext"),
            "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
            "PLAINTEXT:SSL,CONTROLLER:SSL",
        )
    ),
    {"advertised.listeners": "PLAINTEXT://127.0.0.1:{A}"},
    {"controller.listener.names": "EXTRA"},
    {"inter.broker.listener.name": "EXTRA"},
    {"early.start.listeners": "EXTRA"},
    {LISTENERS: "x", "log.roll.ms": "0"},
    {LISTENERS: "x", "group.consumer.assignment.interval.ms": "15001"},
    {LISTENERS: "x", "max.connections.per.ip": "0"},
    {LISTENERS: "x", MAP: "x"},
    {LISTENERS: "{now}", "log.retention.ms": "0"},
    {LISTENERS: "PLAINTEXT://127.0.0.1:{own}", "log.retention.ms": "0"},
    {LISTENERS: "PLAINTEXT://127.0.0.1:{own}", "max.connections.per.ip": "0"},
    {LISTENERS: "{now}", MAP: "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT", "num.io.threads": "1000"},
    {"listener.name.plaintext.nope": "1"},
    {"listener.name.plaintext.nope": "1", LISTENERS: "{now}"},
    {"listener.name.plaintext.nope": "1", LISTENERS: "{now},EXTRA://:{A}", MAP: THREE},
    {"listener.name.plaintext.nope": "1", "listener.name.plaintext.max.connections": "1"},
    {"listener.name.plaintext.nope": "1", "max.connections": "5"},
    {"listener.name.extra.nope": "1", LISTENERS: "{now},EXTRA://:{A}", MAP: THREE},
    {"listener.name.plaintext.max.connections": "7", LISTENERS: "{now},EXTRA://:{A}", MAP: THREE},
]
"""Broker configurations that the scenario validates but does not apply."""

UNADVERTISED: list[dict[str, str]] = [
    {LISTENERS: "{now},EXTRA://127.0.0.1:{A}"},
    {LISTENERS: "{now},SSL://127.0.0.1:{A}"},
    {LISTENERS: "{now},SSL://127.0.0.1:{A}", MAP: "PLAINTEXT:PLAINTEXT"},
    {LISTENERS: "CONTROLLER://127.0.0.1:{controller}"},
    {LISTENERS: "PLAINTEXT://127.0.0.1:{own}"},
    {LISTENERS: "EXTRA://127.0.0.1:{A},CONTROLLER://127.0.0.1:{controller}", MAP: THREE},
    {LISTENERS: "PLAINTEXT://0.0.0.0:{own},CONTROLLER://127.0.0.1:{controller}"},
    {LISTENERS: "PLAINTEXT://:{own},CONTROLLER://127.0.0.1:{controller}"},
    {LISTENERS: "PLAINTEXT://127.0.0.1:{own},CONTROLLER://0.0.0.0:{controller}"},
    {LISTENERS: "{now},EXTRA://0.0.0.0:{A}", MAP: THREE},
    {LISTENERS: "{now},EXTRA://127.0.0.1:{A}", MAP: "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"},
    {MAP: "EXTRA:PLAINTEXT"},
    {MAP: TWO},
    {LISTENERS: "x"},
    {LISTENERS: ","},
    {MAP: "x"},
]


class Ports:
    """The ports of a broker and some free ports. Observations contain the names of ports, not numbers."""

    def __init__(self, broker: Broker) -> None:
        self.numbers = {
            "own": broker.port,
            "controller": broker.controller_port,
            **{name: free_port() for name in "ABD"},
        }
        self.now = f"PLAINTEXT://{HERE}:{broker.port},CONTROLLER://{HERE}:{broker.controller_port}"

    def with_numbers(self, text: str) -> str:
        return text.format(now=self.now, **self.numbers)

    def with_names(self, value: Any) -> Any:
        """Replace port numbers in a value by their names."""
        if isinstance(value, dict):
            return {self.with_names(key): self.with_names(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.with_names(item) for item in value]
        for name, number in self.numbers.items():
            if value == number and not isinstance(value, bool):
                return f"<{name}>"
            if isinstance(value, str):
                value = value.replace(str(number), f"<{name}>")
        return value


class ListenerObserver:
    """A client that changes a broker's listeners and observes the effects."""

    def __init__(self, broker: Broker) -> None:
        self.ports = Ports(broker)
        self.client = RawClient(broker.bootstrap)
        self._looks = 0

    def change(self, settings: Settings, *, check: bool = False) -> Any:
        changes = [
            (name, DELETE, None) if text is None else (name, SET, self.ports.with_numbers(text))
            for name, text in settings.items()
        ]
        return self.ports.with_names(change(self.client, BROKER, "1", changes, check=check))

    def state(self) -> Any:
        """Wait until port states and described keys no longer change, and return them.

        First, create a topic. When the topic exists, the broker has applied all earlier metadata records.
        """
        self._looks += 1
        create_topic(self.client, f"{TOPIC}-{self._looks}")
        deadline = time.monotonic() + SECONDS
        before = None
        while True:
            found = {
                "serving": {
                    name: responds_to_api_versions(number, ANSWER_S)
                    for name, number in self.ports.numbers.items()
                    if name != "controller"
                },
                "described": sorted(
                    entries(self.client, BROKER, "1", KEYS), key=lambda entry: str(entry["Name"])
                ),
            }
            if found == before:
                return self.ports.with_names(found)
            assert time.monotonic() < deadline, found
            before = found
            time.sleep(PAUSE_S)

    def connect(self, port: str) -> RawClient:
        return RawClient(f"{HERE}:{self.ports.numbers[port]}")

    def metadata_seen_at(self, port: str) -> Any:
        """Return the responses of Metadata and the Describe requests that a client receives on this port."""
        with self.connect(port) as client:
            wanted = [{"TopicId": bytes(16), "Name": TOPIC}]
            responses = [
                client.call("Metadata", version, Topics=wanted, AllowAutoTopicCreation=False)
                for version in (0, 1, 5, 6, 12)
            ]
            responses += [client.call("DescribeCluster", version, EndpointType=1) for version in (0, 1, 2)]
            responses.append(
                client.call("DescribeTopicPartitions", 0, Topics=[{"Name": TOPIC}], ResponsePartitionLimit=5)
            )
        for response in responses:
            for topic in response.get("Topics", ()):
                for partition in topic["Partitions"]:
                    partition.pop("LeaderEpoch", None)
        return [self.endpoints(response) for response in responses]

    def endpoints(self, response: Any) -> Any:
        """Replace the ports in the response by names, because `comparable` would remove the ports."""
        for broker in response.get("Brokers", ()):
            broker["Host"] = f"{broker['Host']}:{self.ports.with_names(broker['Port'])}"
        return comparable(response)


def is_alive(client: RawClient) -> bool:
    """Return whether the broker still responds on a connection."""
    try:
        client.call("ApiVersions", 0)
    except (OSError, EOFError):
        return False
    return True


def validate(observer: ListenerObserver, settings: list[dict[str, str]]) -> list[Any]:
    return [[observer.ports.with_names(each), observer.change(each, check=True)] for each in settings]


@scenario()
def validated_only(broker: Broker) -> Any:
    """Validate changes of listeners without applying them, and record the error messages."""
    observer = ListenerObserver(broker)
    with observer.client as client:
        cluster = [change(client, BROKER, "", [(name, SET, "x")]) for name in KEYS]
        edits = [
            observer.ports.with_names(
                change(client, BROKER, "1", [(name, how, observer.ports.with_numbers(text))])
            )
            for how in (APPEND, SUBTRACT)
            for name, text in (
                (LISTENERS, "EXTRA://127.0.0.1:{A}"),
                (LISTENERS, "PLAINTEXT://127.0.0.1:{own}"),
                (LISTENERS, "PLAINTEXT://:9092"),
                (MAP, "EXTRA:PLAINTEXT"),
            )
        ]
        return [cluster, edits, validate(observer, CHECKED), observer.state()]


@scenario(seconds=150)
def added_and_removed(broker: Broker) -> Any:
    """Add a listener, use it, change its address, remove it, and restart the broker."""
    own = type(broker)()
    own.start()
    try:
        seen: list[Any] = []
        observer = ListenerObserver(own)
        with observer.client as client:
            create_topic(client, TOPIC)
            seen += [observer.state(), observer.metadata_seen_at("own")]
            more: dict[str, str | None] = {LISTENERS: "{now},EXTRA://127.0.0.1:{A}", MAP: THREE}
            seen += [observer.change(more), observer.state(), observer.metadata_seen_at("A")]
            seen.append(observer.metadata_seen_at("own"))
            with observer.connect("A") as one, observer.connect("A") as other:
                seen.append([is_alive(one), is_alive(other)])
                seen.append(observer.change({MAP: None}))
                seen.append(observer.change({MAP: f"{TWO},EXTRA:SSL"}))
                seen.append(observer.change({LISTENERS: "{now},extra://127.0.0.1:{A}"}))
                seen += [observer.state(), is_alive(one)]
                # A connection to a listener can delete that listener.
                seen.append(change(one, BROKER, "1", [(LISTENERS, DELETE, None)], check=False))
                seen += [observer.state(), is_alive(one), is_alive(other), is_alive(client)]
            with socket.socket() as taken:
                taken.bind((HERE, observer.ports.numbers["B"]))
                blocked: dict[str, str | None] = {
                    LISTENERS: "{now},EXTRA://127.0.0.1:{B}",
                    "message.max.bytes": "12345",
                }
                seen += [observer.change(blocked), observer.state()]
            seen += [observer.change({"message.max.bytes": None}), observer.state()]
            seen += [observer.change({LISTENERS: None}), observer.state()]
            for address in ("no.such.host:{A}", "127.0.0.1:-1", "127.0.0.1:65536", "a..b:{A}", ":{A}"):
                seen += [observer.change({LISTENERS: "{now},EXTRA://" + address}), observer.state()]
                seen += [observer.change({LISTENERS: None}), observer.state()]
            moved = "PLAINTEXT://127.0.0.1:{D},CONTROLLER://127.0.0.1:{controller},EXTRA://127.0.0.1:{A}"
            seen += [observer.change({LISTENERS: moved}), observer.state(), is_alive(client)]
        own.restart()
        observer.client = RawClient(own.bootstrap)
        with observer.client:
            seen += [observer.state(), observer.metadata_seen_at("own"), observer.metadata_seen_at("A")]
        own.properties.update(
            {
                LISTENERS: observer.ports.with_numbers("{now},EXTRA://127.0.0.1:{B}"),
                MAP: THREE,
                "advertised.listeners": observer.ports.with_numbers(
                    "PLAINTEXT://127.0.0.1:{own},EXTRA://127.0.0.1:{B}"
                ),
            }
        )
        own.restart()
        observer.client = RawClient(own.bootstrap)
        with observer.client:
            seen += [observer.state(), observer.metadata_seen_at("B")]
            seen.append(observer.change({LISTENERS: "{now}"}))
            seen.append(observer.change({LISTENERS: None}))
        return seen
    finally:
        own.discard()


@scenario(seconds=120)
def without_advertised_listeners(broker: Broker) -> Any:
    """Add listeners to a broker without `advertised.listeners`. They cannot be removed again."""
    own = type(broker)()
    del own.properties["advertised.listeners"]
    del own.properties[MAP]
    own.start()
    try:
        observer = ListenerObserver(own)
        with observer.client as client:
            create_topic(client, TOPIC)
            seen: list[Any] = [validate(observer, UNADVERTISED)]
            more: dict[str, str | None] = {LISTENERS: "{now},EXTRA://127.0.0.1:{A}", MAP: THREE}
            seen += [observer.change(more), observer.state(), observer.metadata_seen_at("A")]
            seen.append(observer.change({LISTENERS: None, MAP: None}))
            seen.append(observer.change({LISTENERS: "{now}"}))
            seen.append(observer.state())
        own.restart()
        observer.client = RawClient(own.bootstrap)
        with observer.client:
            seen += [observer.state(), observer.metadata_seen_at("own"), observer.metadata_seen_at("A")]
        return seen
    finally:
        own.discard()
