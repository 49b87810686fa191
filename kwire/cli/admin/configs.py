"""`kwire configs`: describe and alter the configuration of topics, brokers, groups and client metrics."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.client_settings import pairs
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import describe_api_error, suggestion
from kwire.cli.shared.options import command_parser
from kwire.cli.shared.output import Output, Row
from kwire.client.errors import raise_for_code
from kwire.wire.errors import ApiError
from kwire.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from kwire.wire.plural import plural

RESOURCE_TYPES: Final = {
    "topic": RESOURCE_TOPIC,
    "broker": RESOURCE_BROKER,
    "logger": RESOURCE_BROKER_LOGGER,
    "client-metrics": RESOURCE_CLIENT_METRICS,
    "group": RESOURCE_GROUP,
}
PLURALS: Final = {
    "topics": "topic",
    "brokers": "broker",
    "loggers": "logger",
    "broker-loggers": "logger",
    "groups": "group",
}
"""Kafka's names of the kinds, and the plurals of kwire's."""
RESOURCE_NAMES: Final = {kind: name for name, kind in RESOURCE_TYPES.items()}
SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
DEFAULT: Final = 5
FILE: Final = 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe_configs(
    cluster: CommandClient,
    kind: int,
    name: str,
    *,
    changed_only: bool,
    keys: list[str] | None = None,
    include_documentation: bool = False,
) -> Iterator[Row]:
    """Yield the keys of one resource, with value and source. `keys` is None for all keys.

    `changed_only` selects values that are set on the resource itself, or for all brokers if it is a broker.
    Raises ApiError or Disconnected.
    """
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)],
        include_documentation=include_documentation,
    )

    def attempt() -> DescribeConfigsResponse:
        # Only the broker itself knows the settings of its file.
        if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER) and name:
            return cluster.send_to_node(int(name), request, DescribeConfigsResponse)
        return cluster.send(request, DescribeConfigsResponse)

    for result in cluster.retry(attempt).results:
        raise_for_code(result.error_code, result.error_message, f"{RESOURCE_NAMES[kind]} {name}")
        own = {
            RESOURCE_TOPIC: 1,
            RESOURCE_BROKER_LOGGER: 6,
            RESOURCE_CLIENT_METRICS: 7,
            RESOURCE_GROUP: 8,
        }.get(kind)
        for config in sorted(result.configs, key=lambda config: config.name):
            source = config.config_source
            if changed_only and (source != own if own else source in (DEFAULT, FILE)):
                continue
            row = {
                "key": config.name,
                "value": config.value,
                "source": SOURCES.get(source),
                "read_only": config.read_only,
                "sensitive": config.is_sensitive,
            }
            yield {**row, "documentation": config.documentation} if include_documentation else row


def alter_configs(
    cluster: CommandClient,
    kind: int,
    name: str,
    settings: Mapping[str, str | None],
    *,
    appended: Mapping[str, str] | None = None,
    subtracted: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> None:
    """Set keys of one resource, and remove keys whose value is None. Raises ApiError, CommandError.

    `appended` and `subtracted` are changes of keys whose value is a list. `dry_run` only validates.
    """
    _check_deleted_keys(cluster, kind, name, [key for key, value in settings.items() if value is None])
    changes = [
        AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
        for key, value in settings.items()
    ]
    for operation, lists in ((APPEND, appended or {}), (SUBTRACT, subtracted or {})):
        changes += [
            AlterableConfig(name=key, config_operation=operation, value=value) for key, value in lists.items()
        ]
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)],
        validate_only=dry_run,
    )

    def attempt() -> None:
        if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER) and name:
            response = cluster.send_to_node(int(name), request, IncrementalAlterConfigsResponse)
        else:
            response = cluster.send_to_controller(request, IncrementalAlterConfigsResponse)
        for result in response.responses:
            raise_for_code(result.error_code, result.error_message, f"{RESOURCE_NAMES[kind]} {name}")

    cluster.retry(attempt)


def _check_deleted_keys(cluster: CommandClient, kind: int, name: str, keys: Sequence[str]) -> None:
    """Raise CommandError for a key that does not exist: brokers ignore its deletion silently."""
    if not keys:
        return
    known = {str(row["key"]) for row in describe_configs(cluster, kind, name, changed_only=False)}
    if kind == RESOURCE_BROKER and not name:  # for all brokers, only keys that are set are described
        any_broker = str(min(cluster.brokers()))
        known |= {str(row["key"]) for row in describe_configs(cluster, kind, any_broker, changed_only=False)}
    for key in keys:
        if key not in known:
            what = f"{RESOURCE_NAMES[kind]} {name}" if name else "a broker"
            near = suggestion(key, known) or ": 'kwire configs describe KIND NAME --all' lists the keys"
            raise CommandError(f"{what} has no key {key}{near}")


def parser(name: str) -> ArgumentParser:
    parser = command_parser(name, "Describe and alter the configuration of topics, brokers and groups.")
    actions = Actions(parser)
    actions.add("list", _list, "List the resources that have their own configuration.", "kwire configs list")
    describe = actions.add(
        "describe",
        _describe,
        "Show the configuration of a resource.",
        "kwire configs describe topic orders --all",
    )
    _add_resource(describe)
    describe.add_argument("--all", action="store_true", help="include keys with default values")
    describe.add_argument("--key", action="append", metavar="KEY", help="only this key; can be repeated")
    describe.add_argument("--docs", action="store_true", help="include the documentation of each key")
    alter = actions.add(
        "alter",
        _alter,
        "Change configuration keys of a resource.",
        "kwire configs alter topic orders --set retention.ms=86400000 --delete segment.ms",
    )
    _add_resource(alter)
    for option, text in (
        ("set", "set a key"),
        ("append", "append values to a list"),
        ("subtract", "remove values from a list"),
    ):
        alter.add_argument(f"--{option}", action="append", default=[], metavar="KEY=VALUE", help=text)
    alter.add_argument(
        "--delete", action="append", default=[], metavar="KEY", help="reset a key to its default"
    )
    alter.add_argument("--dry-run", action="store_true", help="only validate the change")
    return parser


def _add_resource(parser: ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        type=lambda text: PLURALS.get(text, text),
        choices=sorted(RESOURCE_TYPES),
        metavar="KIND",
        help=f"{', '.join(sorted(RESOURCE_TYPES))}; or the plural, as in kafka-configs --entity-type",
    )
    parser.add_argument(
        "name", nargs="?", default="", metavar="NAME", help="a name or broker id (default: all brokers)"
    )


def _check_resource(cluster: CommandClient, options: Namespace) -> None:
    """Raise CommandError if the resource does not exist: brokers report that less clearly, or not at all."""
    if not options.name and options.kind != "broker":
        raise UsageError(f"NAME is missing: expected the name of a {options.kind}")
    if options.kind == "topic":
        cluster.topics([options.name])
    elif options.kind in ("broker", "logger") and options.name:
        if not options.name.isdecimal():
            raise UsageError(f"{options.kind} {options.name}: expected a broker id, which is a number")
        cluster.broker(int(options.name))


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    # With types, a broker that lists only client metrics returns an error, not a partial list (KIP-1142).
    request = ListConfigResourcesRequest(resource_types=list(RESOURCE_NAMES))
    response = cluster.retry(lambda: cluster.send(request, ListConfigResourcesResponse))
    raise_for_code(response.error_code, None, "the config resources")
    rows = [
        {"kind": RESOURCE_NAMES.get(one.resource_type, str(one.resource_type)), "name": one.resource_name}
        for one in sorted(response.config_resources, key=lambda one: (one.resource_type, one.resource_name))
    ]
    output.show(rows, empty="no resource has its own configuration")


def _describe(cluster: CommandClient, options: Namespace, output: Output) -> None:
    _check_resource(cluster, options)
    changed_only = not options.all and not options.key and options.kind != "logger"
    rows = list(
        describe_configs(
            cluster,
            RESOURCE_TYPES[options.kind],
            options.name,
            changed_only=changed_only,
            keys=options.key,
            include_documentation=options.docs,
        )
    )
    for key in options.key or ():
        if not any(row["key"] == key for row in rows):
            raise CommandError(f"{options.kind} {options.name} has no key {key}: --all lists the keys")
    if not output.as_json:
        rows = [
            {name: value for name, value in row.items() if name not in ("read_only", "sensitive")}
            | ({"value": "(secret)"} if row["sensitive"] else {})
            for row in rows
        ]
    output.show(rows, empty="no key is set dynamically: --all shows all keys")


def _alter(cluster: CommandClient, options: Namespace, output: Output) -> None:
    _check_resource(cluster, options)
    set_ = pairs(options.set, "--set")
    appended, subtracted = pairs(options.append, "--append"), pairs(options.subtract, "--subtract")
    keys = [*set_, *options.delete, *appended, *subtracted]
    if not keys:
        raise UsageError("nothing to change: use --set, --delete, --append or --subtract")
    if len(keys) > len(set(keys)):
        raise UsageError("a key is given twice: change it in one way only")
    try:
        alter_configs(
            cluster,
            RESOURCE_TYPES[options.kind],
            options.name,
            {**set_, **dict.fromkeys(options.delete)},
            appended=appended,
            subtracted=subtracted,
            dry_run=options.dry_run,
        )
    except ApiError as error:
        if "dynamically" not in (error.message or ""):
            raise
        raise CommandError(
            f"{describe_api_error(error)}; set it in the broker's configuration file, and restart the broker"
        ) from error
    changed = "would change" if options.dry_run else "changed"
    name = f"{options.kind} {options.name}" if options.name else "all brokers"
    output.report(
        f"{changed} {plural(len(keys), 'key')} of {name}",
        kind=options.kind,
        name=options.name,
        keys=keys,
        dry_run=options.dry_run,
    )
