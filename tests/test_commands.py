"""Every block of commands in the README and the user pages runs.

The test replaces ports. It stops brokers, and commands with `--watch`, as soon as they serve or print.
Blocks with Apache Kafka's tools, Spark or placeholders are not run.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from kwire.broker.config.authorizer import STANDARD_AUTHORIZER
from kwire.client.cluster_client import ClusterClient
from kwire.client.users import set_password
from kwire.testing import ClientConfig, Kafka

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = re.compile(r"(echo .*\| |[A-Z_]+=\w+ )?kwire \w|pip install")
NOT_RUN = re.compile(r"<\w|\.sh\b|/etc/|\bpipeline\b")
INSTALLS = re.compile(r"^(?:pip install|uvx) .*\n", re.MULTILINE)
BLOCKS = {
    f"{page.name}:{number}": commands
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
    if COMMANDS.match(block) and not NOT_RUN.search(block) and (commands := INSTALLS.sub("", block))
}
INSTEAD = "kwire cluster up --controllers 3 --brokers 3 "
FILTER = " | jq .value"
[ALTERNATIVES] = (name for name, block in BLOCKS.items() if block.startswith(INSTEAD))
BLOCKS |= {
    f"{ALTERNATIVES}, line {number}": line
    for number, line in enumerate(BLOCKS.pop(ALTERNATIVES).splitlines())
}
"""Blocks whose commands are alternatives."""

KWIRE = f"""#!{sys.executable}
import os, signal, subprocess, sys
arguments = sys.argv[1:]
ends = signal.SIGTERM if arguments[0] == "serve" else signal.SIGINT if "--watch" in arguments else None
if arguments[0] == "serve":
    if "server.properties" not in arguments:
        arguments += ["--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    if "--console" in arguments:
        arguments += ["--http", "0"]
    arguments += ["--data", "of-another"]
elif arguments[0] == "format":
    arguments += ["--data", "of-format"]
elif arguments[:2] == ["cluster", "up"]:
    arguments += ["--port", os.environ["CLUSTER_PORT"]]
elif arguments[0] == "consume" and "--until" not in arguments:
    arguments += ["--until", "end"]
if arguments[0] not in ("serve", "format", "cluster", "certs", "completion", "doctor", "dump"):
    where = "BOOTSTRAP_OF_USERS" if "--command-config" in arguments else "BOOTSTRAP"
    arguments += ["--bootstrap-server", os.environ[where]]
command = [sys.executable, "-m", "kwire", *arguments]
if ends is None:
    sys.exit(subprocess.run(command).returncode)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what shells start with & ignores it
with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
    seen = process.stdout.readline()
    process.send_signal(ends)
    sys.exit(process.wait() or not seen)
"""
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{0}
listeners=PLAINTEXT://127.0.0.1:{1},CONTROLLER://127.0.0.1:{0}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
"""


LISTENER = "listener.name.sasl_plaintext"
LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    f"{LISTENER}.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
    "required;",
    "delegation.token.secret.key": "some-long-secret",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS;User:alice;User:admin",
}
"""The properties of a plaintext broker and of one with users."""
USERS = {"alice": "alice-secret", "admin": "admin-secret", "bob": "bob-secret"}


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        first = random.randrange(20_000, 30_000)
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield an environment with a running broker and example data."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "kwire").write_text(KWIRE)
    (place / "kwire").chmod(0o755)
    (tmp_path / "orders.txt").write_text('customer 7:{"order": 1}\ncustomer 8:{"order": 2}\n')
    controller = free_ports(2)
    (tmp_path / "server.properties").write_text(PROPERTIES.format(controller, controller + 1))
    for name, password in USERS.items():
        login = ClientConfig("", name, password, "SCRAM-SHA-512").java
        (tmp_path / f"{name}.properties").write_text("".join(f"{key}={login[key]}\n" for key in login))
        (tmp_path / "password.txt").write_text(USERS["alice"])
    environment = {
        **os.environ,
        "PATH": f"{place}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CLUSTER_PORT": str(free_ports(10)),
    }
    command = [sys.executable, "-m", "kwire", "serve"]
    command += [word for key, value in LISTENERS.items() for word in ("--set", f"{key}={value}")]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as broker:
        assert broker.stdout is not None
        try:
            found = re.search(r"serves on ([\d.:]+),([\d.:]+),", broker.stdout.readline())
            assert found
            yield {**environment, "BOOTSTRAP": found[1], "BOOTSTRAP_OF_USERS": found[2]}
        finally:
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(30) == 0
            if (tmp_path / "kwire-cluster").exists():
                subprocess.run(
                    [place / "kwire", "cluster", "down"], cwd=tmp_path, env=environment, check=False
                )


def create_example_data(bootstrap: str, *, has_orders: bool) -> None:
    """Create topics with one record each, a group with a committed offset, and users."""
    with Kafka(bootstrap) as kafka:
        for topic in ("orders", "old") if has_orders else ("old",):
            kafka.produce(topic, '{"order": 0}', key="customer 7")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("old", 0, 1)], asynchronous=False)
    consumer.close()
    host, _, port = bootstrap.rpartition(":")
    with ClusterClient([(host, int(port))], client_id="test", timeout_seconds=20) as cluster:
        for name, password in USERS.items():
            set_password(cluster, name, password, "SCRAM-SHA-512")


def test_pages_have_blocks_to_run() -> None:
    assert {name.partition(":")[0] for name in BLOCKS} >= {
        "README.md",
        "start.md",
        "command-line.md",
        "cluster.md",
        "security.md",
    }


@pytest.mark.parametrize("name", list(BLOCKS))
def test_a_block_of_commands_runs(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    if "tls/alice.pem" in BLOCKS[name]:
        run_certs = [str(tmp_path / "bin" / "kwire"), "certs", "tls", "--client", "alice"]
        subprocess.run(run_certs, cwd=tmp_path, env=environment, check=True, capture_output=True)
    create_example_data(environment["BOOTSTRAP"], has_orders="topics create orders" not in BLOCKS[name])
    block = BLOCKS[name] if shutil.which("jq") else BLOCKS[name].replace(FILTER, "")
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
