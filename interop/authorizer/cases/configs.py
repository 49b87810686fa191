"""Configurations of topics, groups, brokers, loggers and client metrics."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.rights import cluster, group, topic
from interop.wire import Fields

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
RESOURCES = (
    (TOPIC, "orders", "retention.ms", "1000000"),
    (TOPIC, "hidden", "retention.ms", "1000000"),
    (TOPIC, "missing", "retention.ms", "1000000"),
    (TOPIC, "a/b", "retention.ms", "1000000"),
    (GROUP, "team", "consumer.session.timeout.ms", "600000"),
    (GROUP, "hidden-team", "consumer.session.timeout.ms", "600000"),
    (BROKER, "1", "log.retention.ms", "1000000000"),
    (BROKER, "", "log.retention.ms", "1000000000"),
    (BROKER, "77", "log.retention.ms", "1000000000"),
    (BROKER, "odd", "log.retention.ms", "1000000000"),
    (CLIENT_METRICS, "metrics", "interval.ms", "100000"),
)
INVALID = (
    (TOPIC, "hidden", "retention.ms", "odd"),
    (GROUP, "hidden-team", "consumer.session.timeout.ms", "odd"),
    (BROKER, "1", "log.retention.ms", "odd"),
    (BROKER, "", "log.retention.ms", "odd"),
    (CLIENT_METRICS, "metrics", "interval.ms", "odd"),
    (TOPIC, "", "retention.ms", "1"),
)
LOGGER = (BROKER_LOGGER, "1", "kafka", "WARN")
BOTH = ("broker", "controller")
SET = 0


def described(*resources: tuple[int, str, str, str]) -> Fields:
    return {
        "Resources": [
            {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": [key]}
            for kind, name, key, _ in resources
        ]
    }


def altered(*resources: tuple[int, str, str, str]) -> Fields:
    return {
        "Resources": [
            {
                "ResourceType": kind,
                "ResourceName": name,
                "Configs": [{"Name": key, "Value": value, "ConfigOperation": SET}],
            }
            for kind, name, key, value in resources
        ],
        "ValidateOnly": True,
    }


def legacy(*resources: tuple[int, str, str, str]) -> Fields:
    request = altered(*resources)
    for resource in request["Resources"]:
        del resource["Configs"][0]["ConfigOperation"]
    return request


add(
    Case(
        "DescribeConfigs",
        {
            "all": described(*RESOURCES),
            "unknown type": described((99, "orders", "", "")),
            "logger": described(LOGGER),
        },
        (topic("DESCRIBE_CONFIGS"), group("DESCRIBE_CONFIGS"), cluster("DESCRIBE_CONFIGS")),
        on=BOTH,
        more={
            "ALTER_CONFIGS": (topic("ALTER_CONFIGS"), group("ALTER_CONFIGS")),
            "DESCRIBE": (topic("DESCRIBE"), group("DESCRIBE"), cluster("DESCRIBE")),
        },
    ),
    Case(
        "AlterConfigs",
        {
            "all": legacy(*RESOURCES),
            "broker": legacy(RESOURCES[6]),
            "invalid": legacy(*INVALID),
            "logger": legacy(LOGGER),
            "unknown type": legacy((99, "orders", "a", "b")),
        },
        (topic("ALTER_CONFIGS"), group("ALTER_CONFIGS"), cluster("ALTER_CONFIGS")),
        on=BOTH,
    ),
    # Apache Kafka's broker never responds to this request.
    Case(
        "AlterConfigs",
        {"twice": legacy(RESOURCES[0], RESOURCES[0])},
        (topic("ALTER_CONFIGS"),),
        on=("controller",),
    ),
    Case(
        "IncrementalAlterConfigs",
        {
            "all": altered(*RESOURCES),
            "broker": altered(RESOURCES[6]),
            "invalid": altered(*INVALID),
            "logger": altered(LOGGER),
            "unknown type": altered((99, "orders", "a", "b")),
            "twice": altered(RESOURCES[0], RESOURCES[0]),
        },
        (
            topic("ALTER_CONFIGS"),
            group("ALTER_CONFIGS"),
            cluster("ALTER_CONFIGS"),
            cluster("CLUSTER_ACTION"),
        ),
        on=BOTH,
    ),
)
