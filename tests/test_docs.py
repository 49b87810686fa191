"""Every Python example of the user pages runs; only the broker's address is replaced.

The examples for Spark run in interop. Decisions quote incomplete code, so they are not run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kwire.broker.api.request.supported_apis import SUPPORTED_APIS
from kwire.broker.config import BrokerConfig
from kwire.broker.config.authorizer import authorizer_settings
from kwire.broker.config.protection import unprotected_settings
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.security.node_tls import NodeTls
from kwire.broker.security.settings import listener_security
from kwire.cli.main import main as run_command
from kwire.client.security import parse_security
from kwire.testing import Broker
from kwire.wire.java_properties import load as read_properties

DOCS = Path(__file__).resolve().parent.parent / "docs"
ADDRESS = "127.0.0.1:9092"


def examples_of(page: Path) -> list[str]:
    """Return the Python examples of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def properties_of(page: Path) -> list[dict[str, str]]:
    """Return the properties files of a page, of brokers and clients."""
    texts = re.findall(r"^```properties\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [read_properties(text) for text in texts]


EXAMPLES = {
    f"{page.relative_to(DOCS)}:{number}": code
    for page in sorted(DOCS.glob("*.md"))
    for number, code in enumerate(examples_of(page))
    if "spark" not in code
}
CONTAINER = (
    "from testcontainers.kafka import KafkaContainer",
    "from kwire.testing.containers import KafkaContainer",
)
"""The line that a migrating test suite changes, before and after."""
TESTS = re.compile(r"^(import|from) .*^def test_", re.DOTALL | re.MULTILINE)
"""Matches a complete example for pytest."""
OF_INTERNAL_TOPICS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
)
EARLY = "            consumer.commit()\n"
LATE = "            history.on_poll("
PLANTED = next(name for name, code in EXAMPLES.items() if EARLY in code)
"""The example with a bug that its test finds."""


def run_pytest(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run an example as a test suite, with only kwire's fixtures."""
    (directory / "test_example.py").write_text(code.replace(*CONTAINER))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "kwire.testing.plugin", "-p", "no:cacheprovider", "."],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def test_getting_started_has_an_example_for_each_client() -> None:
    found = "\n".join(
        code for name, code in EXAMPLES.items() if name.startswith("start.md") and ADDRESS in code
    )
    assert set(re.findall(r"^from (\w+) import", found, re.MULTILINE)) == {
        "kafka",
        "aiokafka",
        "confluent_kafka",
    }


def test_examples_with_tests_are_complete() -> None:
    """An incomplete example would only define a test and always pass."""
    tests = {name for name, code in EXAMPLES.items() if re.search(r"^def test_", code, re.MULTILINE)}
    assert tests == {name for name, code in EXAMPLES.items() if TESTS.search(code)}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != PLANTED])
def test_example_runs(name: str, tmp_path: Path) -> None:
    if TESTS.search(EXAMPLES[name]):
        result = run_pytest(EXAMPLES[name], tmp_path)
        assert result.returncode == 0, result.stdout
        return
    with Broker() as broker:
        code = EXAMPLES[name].replace(ADDRESS, broker.bootstrap_servers)
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
    assert result.returncode == 0, result.stderr


SECURITY = properties_of(DOCS / "security.md")
SASL = [each for each in SECURITY if "sasl.enabled.mechanisms" in each or "sasl.mechanism" in each]
AUTHORIZER = [each for each in SECURITY if "authorizer.class.name" in each]
TLS = [each for each in SECURITY if each not in SASL + AUTHORIZER]


@pytest.mark.parametrize("properties", SASL)
def test_properties_for_sasl_in_the_pages_are_valid(properties: dict[str, str], tmp_path: Path) -> None:
    if "sasl.enabled.mechanisms" in properties:
        first = SASL[0]
        whole = properties if "listeners" in properties else first | properties
        config = BrokerConfig({**whole, "log.dirs": str(tmp_path)})
        assert listener_security(config, "CLIENTS") is not None
        voters = whole.get("controller.quorum.voters") or whole["controller.quorum.bootstrap.servers"]
        for key in OF_INTERNAL_TOPICS:
            assert int(str(config.value(key))) <= voters.count(",") + 1, f"{key}: there is no coordinator"
    else:
        assert parse_security(properties).credentials is not None


@pytest.mark.parametrize("properties", AUTHORIZER)
def test_properties_of_the_authorizer_in_the_pages_are_valid(
    properties: dict[str, str], tmp_path: Path
) -> None:
    config = BrokerConfig({**SASL[0], **properties, "log.dirs": str(tmp_path)})
    settings = authorizer_settings(config.static_settings)
    assert settings is not None
    assert settings.super_users
    assert not unprotected_settings(properties)


@pytest.mark.parametrize("properties", TLS)
def test_properties_for_tls_in_the_pages_are_valid(
    properties: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificates are those of the commands on the page."""
    monkeypatch.chdir(tmp_path)
    assert run_command(["certs", "tls", "--client", "alice"]) == 0
    assert run_command(["certs", "tls", "--node", "node-1", "--host", "10.0.0.1"]) == 0
    if "security.protocol" in properties:
        assert parse_security(properties).tls is not None
        return
    whole = properties
    if "listeners" not in properties:  # the lines change the first example for SASL
        protocols = SASL[0]["listener.security.protocol.map"].replace("SASL_PLAINTEXT", "SASL_SSL")
        whole = SASL[0] | properties | {"listener.security.protocol.map": protocols}
    config = BrokerConfig({**whole, "log.dirs": str(tmp_path)})
    tls = NodeTls(config, RealStoreFiles())
    assert any(tls.of(endpoint.name) for endpoint in config.listener_endpoints())


def test_migration_example_works() -> None:
    before, after = CONTAINER
    page, _, suites = (DOCS / "moving.md").read_text().partition("## Three suites that were moved")
    assert suites
    assert f"-{before}\n+{after}\n" in page
    assert page.count(before) == 2, "in the suite before, and in the change"


def test_planted_bug_is_found_with_the_shown_output(tmp_path: Path) -> None:
    result = run_pytest(EXAMPLES[PLANTED], tmp_path)
    assert re.search("^1 failed", result.stdout, re.MULTILINE)
    words = r"unread: billing did not read orders-0 offset 0: b'order 1' \(record 1 of shop, sent"
    assert re.search(words, result.stdout), result.stdout
    assert re.search(words, (DOCS / "testing.md").read_text())


def test_example_passes_without_the_planted_bug(tmp_path: Path) -> None:
    first, _, rest = EXAMPLES[PLANTED].partition(EARLY)
    before, polled, behind = rest.partition(LATE)
    line, _, after = behind.partition("\n")
    result = run_pytest(f"{first}{before}{polled}{line}\n{EARLY}{after}", tmp_path)
    assert result.returncode == 0, result.stdout


def test_apis_page_lists_each_api_once_with_its_kips() -> None:
    spec = importlib.util.spec_from_file_location("pages", DOCS / "site" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    apis, kips = pages.apis_page().split("## By KIP")
    rows = [line.strip("| ").split(" | ") for line in apis.splitlines() if re.match(r"\| \d", line)]
    keys: list[int] = []
    for named, *_ in rows:
        for part in named.split(", "):
            first, _, last = part.partition(" to ")
            keys += range(int(first), int(last or first) + 1)
    assert len(keys) == len(set(keys)), "what is served is not among what is not"
    assert set(SUPPORTED_APIS) <= set(keys)
    assert "KIP-848 (member epoch, v9)" in next(row for row in rows if row[1] == "OffsetCommit")[-1]
    assert re.search(r"^\| KIP-848 \| yes \| OffsetCommit, .*coordinator/groups/consumer", kips, re.MULTILINE)
    assert "| KIP-932 | no; " in kips


def where_to_look() -> list[tuple[str, list[str], list[str]]]:
    """Return the rows of the first table of docs/inside.md: question, files, and names in these files."""
    table = (DOCS / "inside.md").read_text().partition("## Where to look")[2].partition("\n## ")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| Where ")]
    quoted = [(row[1].strip(), re.findall(r"`([\w/.*]+)`", f"{row[2]} {row[3]}")) for row in rows]
    return [
        (question, [name for name in names if "/" in name], [name for name in names if "/" not in name])
        for question, names in quoted
    ]


@pytest.mark.parametrize(("question", "paths", "names"), where_to_look())
def test_page_inside_names_existing_files_and_code(question: str, paths: list[str], names: list[str]) -> None:
    sources = "\n".join((DOCS.parent / "kwire" / path).read_text() for path in paths)
    named = {part for name in names for part in name.split(".")} - {"_keys", "py", "*_keys", "Key", "observe"}
    assert paths
    defined = r"(?m)(?:class|def) {0}\b|^ *{0}(?:: | = )"
    assert {part for part in named if not re.search(defined.format(part), sources)} == set()
