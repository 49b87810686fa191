"""Pages of the documentation site that are generated from the code: configuration keys, APIs and KIPs.

MkDocs calls these hooks while it builds (mkdocs.yml). Nothing is written into the repository.
"""

from __future__ import annotations

import importlib
import posixpath
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

SERVED_BY = {
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
UPWARD = re.compile(r"\[([^\]]+)\]\((\.\./[^)]*)\)")
"""A link to a file in a folder above that of the page."""

KIP = re.compile(r"KIP-(\d+)")
KIP_WITH_NOTE = re.compile(r"KIP-\d+(?: \([^)]*\))?")
WITHIN = re.compile(r"(?<!^)(?=[A-Z])")
"""A word boundary inside a name such as FindCoordinator."""
NOT_SERVED = (
    ("76 to 79, 83 to 87, 90 to 92", "all APIs of share groups", "KIP-932"),
    ("88, 89", "all APIs of streams groups", "KIP-1071"),
)
"""APIs of Apache Kafka 4.3 that kwire does not serve: keys, names, KIPs."""
UNSUPPORTED = {
    405: "no; the keys are accepted without effect",
    932: "no; its metadata records and keys are accepted",
    939: "no; not in a stable release of Apache Kafka either",
    1071: "no; its metadata records and keys are accepted",
}
"""KIPs that the code mentions but does not implement, with their text in the column "Supported"."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, text in (("keys.md", keys_page()), ("apis.md", apis_page())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files outside docs/ with their text, since the site does not contain them."""

    def text_of(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[2]))
        return f"`{link[1].strip('`').removeprefix('../')}`" if target.startswith("../") else link[0]

    return UPWARD.sub(text_of, markdown)


def keys_page() -> str:
    """Return the page with every configuration key: type, default and documentation."""
    return "\n".join(
        [
            "# Every configuration key",
            "",
            "Types, defaults and ranges are those of Apache Kafka 4.3.1.",
            "[Configuration](configurations.md) lists the keys that have an effect in kwire.",
            "",
            "## Topic keys",
            *_keys_table(TOPIC_KEYS),
            "",
            "## Group keys",
            *_keys_table(GROUP_KEYS),
            "",
            "## Client metrics keys",
            *_keys_table(CLIENT_METRICS_KEYS),
            "",
            "## Broker keys",
            *_keys_table(BROKER_KEYS.values(), dynamic=DYNAMIC_KEYS),
            "",
        ]
    )


def _keys_table(keys: Iterable[Key], dynamic: Mapping[str, Key] | None = None) -> Iterator[str]:
    yield ""
    yield "| Key | Type | Default | Description |" + (" Dynamic |" if dynamic is not None else "")
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
    """Return the page with every API of Kafka's protocol, its versions in kwire and its KIPs."""
    rows = [
        f"| {key} | {api.name} | {_versions(served)} | "
        f"{SERVED_BY[served.handled_by] if served is not None else ''} | {', '.join(_kips_of(api.name))} |"
        for key, api in sorted(API_VERSIONS.items())
        for served in [SUPPORTED_APIS.get(key)]
    ]
    rows += [f"| {keys} | {names} | not served | | {kips} |" for keys, names, kips in NOT_SERVED]
    return "\n".join(
        [
            "# Every API and KIP",
            "",
            "The APIs of Kafka's protocol and the versions that kwire advertises. A version is advertised",
            "only when its complete behavior exists. Each KIP is listed with what it changed.",
            "",
            "| Key | API | Versions | Served by | KIPs |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "## By KIP",
            "",
            "KIPs that the code mentions, with the APIs that they changed and their packages.",
            "",
            "| KIP | Supported | APIs | Packages |",
            "|---|---|---|---|",
            *_kips_table(),
            "",
        ]
    )


def _kips_of(api: str) -> list[str]:
    """Return the KIPs in the docstring of an API's message, such as `KIP-345 (instance id, v3)`."""
    module = importlib.import_module(f"{wire.__name__}.messages.{WITHIN.sub('_', api).lower()}")
    return KIP_WITH_NOTE.findall(" ".join((module.__doc__ or "").split()).replace("- ", "-"))


def _kips_table() -> Iterator[str]:
    apis: dict[int, list[str]] = {}
    for _, api in sorted(API_VERSIONS.items()):
        for number in _numbers(" ".join(_kips_of(api.name))):
            apis.setdefault(number, []).append(api.name)
    packages: dict[int, set[str]] = {}
    package = Path(wire.__path__[0]).parent
    for path in sorted(package.rglob("*.py")):
        folder = path.parent.relative_to(package)
        if folder.parts[:1] not in (("testing",), ("cli",)) and folder.parts[:2] != ("wire", "messages"):
            for number in _numbers(path.read_text(encoding="utf-8")):
                packages.setdefault(number, set()).add(str(folder))
    for number in sorted({*apis, *packages}):
        cells = [
            UNSUPPORTED.get(number, "yes"),
            ", ".join(apis.get(number, [])),
            ", ".join(sorted(packages.get(number, []))),
        ]
        yield f"| KIP-{number} | " + " | ".join(cells) + " |"


def _numbers(text: str) -> set[int]:
    return {int(number) for number in KIP.findall(text)}


def _versions(served: SupportedApi | None) -> str:
    if served is None:
        return "not served"
    lowest = served.accepted_versions[0]
    versions = f"{lowest}" if lowest == served.max_version else f"{lowest} to {served.max_version}"
    return f"{versions}, with an HTTP port" if served.needs_client_metrics else versions
