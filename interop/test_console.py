"""The web console connected to either broker: both brokers must give the same pages."""

from __future__ import annotations

import html
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from interop.brokers import ApacheKafka, Broker, Kwire

REPOSITORY = Path(__file__).resolve().parent.parent

Read = Callable[..., str]


@pytest.fixture(scope="module", params=[ApacheKafka, Kwire])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    started: Broker = request.param()
    started.start()
    _fill(started.bootstrap)
    yield started
    started.discard()


def _fill(bootstrap: str) -> None:
    """Produce ten messages, then commit one transaction and abort another."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic("seen", 2, 1, config={"retention.ms": "70000000000000"}), NewTopic("paid", 1, 1)]
    for made in admin.create_topics(topics).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in range(10):
        producer.produce(
            "seen", f"value {number}", f"key {number}", partition=0, timestamp=1_000_000 + number
        )
    producer.flush(30)
    for commits in (True, False):
        payer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "pay"})
        payer.init_transactions(60)
        payer.begin_transaction()
        payer.produce("paid", f"{commits}", partition=0)
        payer.flush(30)
        payer.commit_transaction(60) if commits else payer.abort_transaction(60)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("seen", 0, 4)], asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def http(broker: Broker) -> Iterator[httpx.Client]:
    """Start a console process and yield an HTTP client for it.

    The console receives connections over a socket, as it does from a kwire broker.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "kwire.console", "--fd", str(theirs.fileno())]
        process = subprocess.Popen(
            [*command, "--bootstrap-server", broker.bootstrap], pass_fds=[theirs.fileno()], cwd=REPOSITORY
        )
    with process, ours, socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_hand_over, args=(listener, ours), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client
        process.terminate()


def _hand_over(listener: socket.socket, channel: socket.socket) -> None:
    """Pass each accepted connection to the console until the listener is closed."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                socket.send_fds(channel, [b"."], [connection.fileno()])


@pytest.fixture
def read(http: httpx.Client) -> Read:
    """Return a function that reads the text of a page."""

    def read(path: str, status: int = 200) -> str:
        answer = http.get(f"/console{path}")
        text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())
        assert answer.status_code == status, text
        return text

    return read


def send(http: httpx.Client, page: str, path: str, **fields: str) -> str:
    """Submit a form as a browser does, and return the address to which the console redirects."""
    found = re.search(r'name="token" value="([^"]+)"', http.get(f"/console{page}").text)
    assert found is not None
    answer = http.post(f"/console{path}", data={"token": found[1], **fields})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].removeprefix("/console")


def test_topics_and_messages(read: Read) -> None:
    assert re.search(r"seen 2 1 10 \d", read("/"))
    assert "0 0 10" in read("/topics/seen")
    page = read("/topics/seen/0?from=1970-01-01T00:16:40.004")
    assert "value 4" in page
    assert "value 3" not in page
    assert "zstd" in read("/topics/seen/0/3")
    assert "key 7 value 7" in read("/topics/seen/0?from=beginning&key=key%207")
    assert "there is no topic 'see', or this user may not describe it, did you mean 'seen'?" in read(
        "/topics/see", 404
    )


def test_transaction_outcomes_are_shown(read: Read) -> None:
    page = read("/topics/paid/0?from=beginning")
    assert re.search(r"True committed .*commit.* control .*False aborted .*abort.* control", page)
    drawn = read("/topics/paid/0/log")
    assert "commit marker" in drawn
    assert "abort marker" in drawn
    assert "pay CompleteAbort" in read("/transactions")
    assert "State CompleteAbort" in read("/transaction?id=pay")


def test_group_offsets_are_shown_and_reset(http: httpx.Client, read: Read) -> None:
    assert "seen-0 4 10 6" in read("/group?id=readers")
    assert "seen-0 4 0 10" in read("/group?id=readers&to=beginning")
    place = send(http, "/topics/seen", "/topics/seen/messages", key="typed", value="here", partition="1")
    assert "typed" in read(place)
    send(http, "/group?id=readers&to=8", "/group/offsets", id="readers", to="8")
    assert "seen-0 8 10 2" in read("/group?id=readers")
    pages = "".join(read(f"/topics/__consumer_offsets/{index}") for index in range(4))
    assert '"type": "OffsetCommitKey", "group": "readers", "topic": "seen"' in pages


def test_configurations_and_the_cluster(read: Read) -> None:
    assert "70000000000000 topic" in read("/configs?kind=topic&name=seen&changed=1")
    assert "log.dirs" in read("/configs?kind=broker&name=1")
    page = read("/cluster")
    assert "metadata.version" in page
    assert "1 leader" in page
