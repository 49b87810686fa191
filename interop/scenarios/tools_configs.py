"""kafka-configs for each entity type, and kafka-client-metrics."""

from __future__ import annotations

import re
from typing import Any

from interop.brokers import Broker
from interop.scenario import scenario
from interop.tools import IMPATIENT, TOOLS, a_file, run, said, until

CONFIGS = "kafka.admin.ConfigCommand"


def described_configs(broker: Broker, *entity: str) -> list[str]:
    """Describe an entity, and return the sorted output lines."""
    return sorted(said(CONFIGS, broker, "--describe", *entity))


def altered_configs(broker: Broker, *arguments: str) -> list[str]:
    return said(CONFIGS, broker, "--alter", *arguments)


def altered_without_retries(broker: Broker, *arguments: str) -> list[str]:
    """Alter an unknown entity. Short timeouts prevent retries of the tool."""
    with a_file(IMPATIENT) as settings:
        return [
            line
            for line in altered_configs(broker, "--command-config", settings, *arguments)
            if "args" not in line
        ]


@scenario(seconds=120)
def topics(broker: Broker) -> Any:
    """Set and delete topic configurations, with invalid values and unknown topics."""
    name = "tools-topic-configs"
    said(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", name)
    topic = ("--entity-type", "topics", "--entity-name", name)
    short = ("--topic", name)
    nowhere = ("--topic", "tools-nowhere")
    seen: dict[str, Any] = {}
    seen["describe"] = described_configs(broker, *topic)
    seen["describe all"] = described_configs(broker, *topic, "--all")
    for label, arguments in {
        "set": (*topic, "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]"),
        "set again": (*short, "--add-config", "retention.ms=1000"),
        "delete": (*short, "--delete-config", "retention.ms"),
        "delete again": (*short, "--delete-config", "retention.ms"),
        "both": (*short, "--add-config", "segment.ms=60000", "--delete-config", "cleanup.policy"),
        "unknown": (*short, "--add-config", "no.such.key=1"),
        "delete unknown": (*short, "--delete-config", "no.such.key"),
        "bad value": (*short, "--add-config", "retention.ms=soon"),
        "bad list": (*short, "--add-config", "cleanup.policy=shred"),
        "one bad": (*short, "--add-config", "retention.ms=2000,segment.bytes=tiny"),
        "contradiction": (*short, "--add-config", "min.compaction.lag.ms=10,max.compaction.lag.ms=5"),
        "no value": (*short, "--add-config", "retention.ms="),
        "no change": (*short,),
        "nowhere": (*nowhere, "--add-config", "retention.ms=1"),
        "no name": ("--entity-type", "topics", "--add-config", "retention.ms=1"),
        "bad name": ("--topic", "a b", "--add-config", "retention.ms=1"),
    }.items():
        seen[label] = altered_configs(broker, *arguments)
    until(lambda: any("segment.ms" in line for line in described_configs(broker, *topic)))
    seen["left"] = described_configs(broker, *topic)
    seen["describe nowhere"] = described_configs(broker, *nowhere)
    everything = said(CONFIGS, broker, "--describe", "--entity-type", "topics")
    start = everything.index(f"Dynamic configs for topic {name} are:")
    seen["of all"] = everything[start : start + 2]
    return seen


@scenario(seconds=120)
def brokers(broker: Broker) -> Any:
    """Set dynamic configurations of one broker and of the cluster."""
    one = ("--entity-type", "brokers", "--entity-name", "1")
    default = ("--entity-type", "brokers", "--entity-default")
    seen: dict[str, Any] = {}
    before = len(described_configs(broker, *default))
    for label, arguments in {
        "set": (*one, "--add-config", "log.cleaner.io.max.bytes.per.second=1000000"),
        "set for all": (*default, "--add-config", "log.retention.ms=86400000,log.cleaner.backoff.ms=20000"),
        "fixed": (*one, "--add-config", "log.dirs=/x"),
        "fixed for all": (*default, "--add-config", "broker.rack=x"),
        "own of all": (*default, "--add-config", "advertised.listeners=PLAINTEXT://x:1"),
        "unknown": (*one, "--add-config", "no.such.key=1"),
        "bad value": (*one, "--add-config", "log.retention.ms=soon"),
        "too many threads": (*one, "--add-config", "num.io.threads=1000"),
        "eligible leaders": (*one, "--add-config", "min.insync.replicas=1"),
        "eligible leaders of all": (*default, "--delete-config", "min.insync.replicas"),
        "delete unset": (*one, "--delete-config", "log.retention.ms"),
        "no number": ("--broker", "x", "--add-config", "log.retention.ms=1000"),
    }.items():
        seen[label] = altered_configs(broker, *arguments)
    until(lambda: len(described_configs(broker, *default)) > before + 1)
    until(lambda: any("io.max" in line for line in described_configs(broker, *one)))
    seen["describe"] = described_configs(broker, *one)
    seen["describe default"] = described_configs(broker, *default)
    keys = ("log.retention.ms", "log.cleaner.backoff.ms", "log.cleaner.io.max.bytes.per.second")
    whole = described_configs(broker, *one, "--all")
    seen["in whole"] = [line for line in whole if line.startswith(keys)]
    seen["keys"] = [line.partition("=")[0] for line in whole]
    seen["delete"] = altered_configs(broker, *one, "--delete-config", "log.cleaner.io.max.bytes.per.second")
    seen["delete for all"] = altered_configs(
        broker, *default, "--delete-config", "log.retention.ms,log.cleaner.backoff.ms"
    )
    until(lambda: len(described_configs(broker, *default)) <= before)
    until(lambda: not any("io.max" in line for line in described_configs(broker, *one)))
    seen["left"] = described_configs(broker, *one)
    seen["left of all"] = described_configs(broker, *default)
    for other in ("7", "x"):
        seen[f"describe {other}"] = described_configs(broker, "--broker", other)
    return seen


@scenario(seconds=120)
def loggers(broker: Broker) -> Any:
    """Set log levels. Only the root logger has the same name on both brokers."""
    entity = ("--entity-type", "broker-loggers", "--entity-name", "1")
    seen: dict[str, Any] = {}

    def levels() -> dict[str, str]:
        found = (
            re.match(r"([\w.]+)=(\w+) sensitive=false synonyms={}$", line)
            for line in described_configs(broker, *entity)
        )
        return {match[1]: match[2] for match in found if match is not None}

    other = next(name for name in sorted(levels()) if name != "root")
    for level in ("INFO", "WARN"):
        seen[f"root to {level}"] = altered_configs(broker, *entity, "--add-config", f"root={level}")
        seen[f"root at {level}"] = levels()["root"]
    for level in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"):
        changed = altered_configs(broker, *entity, "--add-config", f"{other}={level}")
        seen[f"to {level}"] = [changed, levels()[other]]
    seen["back"] = [altered_configs(broker, *entity, "--delete-config", other), levels()[other]]
    for label, arguments in {
        "of lower case": ("--add-config", "root=info"),
        "unknown level": ("--add-config", "root=LOUD"),
        "unknown logger": ("--add-config", "no.such.logger=INFO"),
        "unknown logger away": ("--delete-config", "no.such.logger"),
        "root away": ("--delete-config", "root"),
        "one is unknown": ("--add-config", "root=ERROR,no.such.logger=INFO"),
    }.items():
        seen[label] = altered_configs(broker, *entity, *arguments)
    seen["root still"] = levels()["root"]
    seen["another broker"] = described_configs(broker, "--broker-logger", "7")
    seen["alter another broker"] = altered_without_retries(
        broker, "--broker-logger", "7", "--add-config", "root=INFO"
    )
    seen["no broker"] = described_configs(broker, "--entity-type", "broker-loggers")
    seen["end"] = altered_configs(broker, *entity, "--add-config", "root=ERROR")
    return seen


@scenario(seconds=120)
def groups(broker: Broker) -> Any:
    """Set and delete configurations of a group that does not exist, with invalid values."""
    group = ("--entity-type", "groups", "--entity-name", "tools-configs-group")
    seen: dict[str, Any] = {}
    seen["describe"] = described_configs(broker, *group)
    for label, arguments in {
        "set": ("--add-config", "consumer.session.timeout.ms=46000,consumer.heartbeat.interval.ms=6000"),
        "unknown": ("--add-config", "no.such.key=1"),
        "bad value": ("--add-config", "consumer.session.timeout.ms=soon"),
        "too small": ("--add-config", "consumer.session.timeout.ms=1"),
        "too large": ("--add-config", "consumer.session.timeout.ms=6000000"),
        "heartbeats too far apart": ("--add-config", "consumer.heartbeat.interval.ms=50000"),
    }.items():
        seen[label] = altered_configs(broker, *group, *arguments)
    until(lambda: any("46000" in line for line in described_configs(broker, *group)))
    seen["after"] = described_configs(broker, *group)
    seen["after, all"] = described_configs(broker, *group, "--all")
    seen["all groups"] = [
        line for line in described_configs(broker, "--entity-type", "groups") if "tools-" in line
    ]
    seen["delete"] = altered_configs(
        broker, *group, "--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms"
    )
    until(lambda: not any("46000" in line for line in described_configs(broker, *group)))
    seen["left"] = described_configs(broker, *group)
    return seen


@scenario(seconds=60)
def client_metrics(broker: Broker) -> Any:
    """Create and delete subscriptions with kafka-client-metrics."""
    tool = f"{TOOLS}.ClientMetricsCommand"
    seen: dict[str, Any] = {}
    for label, arguments in {
        "list": ("--list",),
        "describe": ("--describe", "--name", "tools-metrics"),
        "alter": (
            *("--alter", "--name", "tools-metrics", "--metrics", "org.apache.kafka.consumer."),
            *("--interval", "60000"),
        ),
        "describe altered": ("--describe", "--name", "tools-metrics"),
        "list altered": ("--list",),
        "delete": ("--delete", "--name", "tools-metrics"),
        "list deleted": ("--list",),
    }.items():
        outcome = run(tool, "--bootstrap-server", broker.bootstrap, *arguments)
        if label == "describe altered":
            until(
                lambda: "tools-metrics" in run(tool, "--bootstrap-server", broker.bootstrap, "--list").stdout
            )
        seen[label] = [*outcome.stdout.split(), outcome.status]
    return seen
