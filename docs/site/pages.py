"""What the documentation's site has beyond the pages in docs/: those that follow from the code.

MkDocs calls these while it builds (`hooks` in mkdocs.yml); nothing is written into the repository.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from kwire import wire
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, HandledBy, SupportedApi
from kwire.broker.config.broker_keys import BROKER_KEYS, DYNAMIC_KEYS
from kwire.broker.config.client_metrics_keys import CLIENT_METRICS_KEYS
from kwire.broker.config.definition import REQUIRED, Key, UpdateMode
from kwire.broker.config.group_keys import GROUP_KEYS
from kwire.broker.config.topic_keys import TOPIC_KEYS
from kwire.wire.registry import API_VERSIONS

WHO = {
    HandledBy.BROKER: "broker",
    HandledBy.EACH_NODE: "broker, controller",
    HandledBy.CONTROLLER: "controller; brokers forward it",
    HandledBy.CONTROLLER_ONLY: "controller, for other nodes",
}
CHANGES = {
    UpdateMode.READ_ONLY: "no",
    UpdateMode.PER_BROKER: "per broker",
    UpdateMode.CLUSTER_WIDE: "cluster-wide",
}
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!decisions/)[^)]*\)")
"""A link to what is in the repository and not in docs/, as pages and decisions have them."""

KIP = re.compile(r"KIP-(\d+)")
KIP_WITH_NOTE = re.compile(r"KIP-\d+(?: \([^)]*\))?")
WITHIN = re.compile(r"(?<!^)(?=[A-Z])")
"""Where a word begins within a name like FindCoordinator."""
NOT_SERVED = (
    ("29 to 31", "DescribeAcls, CreateAcls, DeleteAcls", "KIP-140"),
    ("49", "AlterClientQuotas", "KIP-546"),
    ("76 to 79, 83 to 87, 90 to 92", "those of share groups", "KIP-932"),
    ("88, 89", "those of streams groups", "KIP-1071"),
)
"""What Apache Kafka 4.3 has beyond that: keys, names, KIPs."""
WITHOUT = {
    405: "no; keys of tiered storage are known, and its offsets are asked for in vain",
    932: "no; records are read, and keys known",
    939: "no, nor in a version of Apache Kafka's that is stable",
    1071: "no; records are read, and keys known",
}
"""KIPs that the code names and yet does not offer."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that follow from the code."""
    for name, text in (("keys.md", keys_page()), ("apis.md", apis_page())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that lead out of docs/ become their texts: the site is read without the repository."""

    def text_of(link: re.Match[str]) -> str:
        target = link[0].rsplit("(", 1)[1]
        is_kept = page.file.src_uri.startswith("decisions/") and not target.startswith("../../")
        return link[0] if is_kept else f"`{link[1].strip('`').removeprefix('../')}`"

    return OUTSIDE.sub(text_of, markdown)


def keys_page() -> str:
    """Every configuration key, with its type, its default and what it does."""
    return "\n".join(
        [
            "# Every configuration key",
            "",
            "Types, defaults and ranges are those of Apache Kafka 4.3.1.",
            "[Configurations](configurations.md) tells which of them kwire honours, and why.",
            "",
            "## Of a topic",
            *_keys_table(TOPIC_KEYS),
            "",
            "## Of a group",
            *_keys_table(GROUP_KEYS),
            "",
            "## Of a subscription to clients' metrics",
            *_keys_table(CLIENT_METRICS_KEYS),
            "",
            "## Of a broker",
            *_keys_table(BROKER_KEYS.values(), dynamic=DYNAMIC_KEYS),
            "",
        ]
    )


def _keys_table(keys: Iterable[Key], dynamic: Mapping[str, Key] | None = None) -> Iterator[str]:
    yield ""
    yield "| Key | Type | Default | What it does |" + (
        " Changes at run time |" if dynamic is not None else ""
    )
    yield "|---|---|---|---|" + ("---|" if dynamic is not None else "")
    for key in sorted(keys, key=lambda key: key.name):
        if key.internal:
            continue
        default = {None: "none", REQUIRED: "must be set", "": "empty"}.get(key.default, f"`{key.default}`")
        cells = [f"`{key.name}`", key.type.name.lower(), default, key.doc]
        if dynamic is not None:
            cells.append(CHANGES[key.update_mode if key.name in dynamic else UpdateMode.READ_ONLY])
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def apis_page() -> str:
    """Every API of Kafka's protocol, what kwire has of it, and the KIPs that it goes by."""
    rows = [
        f"| {key} | {api.name} | {_versions(served)} | "
        f"{WHO[served.handled_by] if served is not None else ''} | {', '.join(_kips_of(api.name))} |"
        for key, api in sorted(API_VERSIONS.items())
        for served in [SUPPORTED_APIS.get(key)]
    ]
    rows += [f"| {keys} | {names} | not served | | {kips} |" for keys, names, kips in NOT_SERVED]
    return "\n".join(
        [
            "# Every API and KIP",
            "",
            "What kwire answers of Kafka's protocol, as ApiVersions advertises it. A version is advertised",
            "only when its whole behaviour is there. KIPs stand with what they changed, and where.",
            "",
            "| Key | API | Versions | Answered by | KIPs |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "## By KIP",
            "",
            "Those that the code names, with the APIs that they have changed and the rooms that go by them.",
            "",
            "| KIP | Honoured | APIs | Rooms |",
            "|---|---|---|---|",
            *_kips_table(),
            "",
        ]
    )


def _kips_of(api: str) -> list[str]:
    """What has changed an API, as its message says: `KIP-345 (instance id, v3)`."""
    module = importlib.import_module(f"{wire.__name__}.messages.{WITHIN.sub('_', api).lower()}")
    return KIP_WITH_NOTE.findall(" ".join((module.__doc__ or "").split()).replace("- ", "-"))


def _kips_table() -> Iterator[str]:
    apis: dict[int, list[str]] = {}
    for _, api in sorted(API_VERSIONS.items()):
        for number in _numbers(" ".join(_kips_of(api.name))):
            apis.setdefault(number, []).append(api.name)
    rooms: dict[int, set[str]] = {}
    package = Path(wire.__path__[0]).parent
    for path in sorted(package.rglob("*.py")):
        room = path.parent.relative_to(package)
        if room.parts[:1] not in (("testing",), ("desk",)) and room.parts[:2] != ("wire", "messages"):
            for number in _numbers(path.read_text(encoding="utf-8")):
                rooms.setdefault(number, set()).add(str(room))
    for number in sorted({*apis, *rooms}):
        cells = [
            WITHOUT.get(number, "yes"),
            ", ".join(apis.get(number, [])),
            ", ".join(sorted(rooms.get(number, []))),
        ]
        yield f"| KIP-{number} | " + " | ".join(cells) + " |"


def _numbers(text: str) -> set[int]:
    return {int(number) for number in KIP.findall(text)}


def _versions(served: SupportedApi | None) -> str:
    if served is None:
        return "not served"
    lowest = max(served.min_version, served.rejected_below)
    versions = f"{lowest}" if lowest == served.max_version else f"{lowest} to {served.max_version}"
    return f"{versions}, with an HTTP port" if served.needs_telemetry_receiver else versions
