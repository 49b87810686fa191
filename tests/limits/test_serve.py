"""`kwire serve` with few file descriptors, and with a standard error that cannot be written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kwire.wire.errors import ErrorCode
from tests.durability.child import ROOT, BrokerProcess
from tests.limits.client import RETRIABLE, Client

PARTITIONS = 200
CLIENTS = 40
FAILED = re.compile(r"has failed|is offline|goes offline|Traceback")


@contextmanager
def serving(tmp_path: Path, open_files: int) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path / "data",
        tmp_path / "log",
        {"log.flush.interval.ms": "100"},
        open_files=(open_files, open_files),
    )
    process.start()
    try:
        assert process.wait_until_it_serves()
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("open_files", [64, 128])
def test_broker_serves_more_partitions_and_clients_than_it_has_descriptors(
    tmp_path: Path, open_files: int
) -> None:
    produced = dict.fromkeys(range(PARTITIONS), 0)
    with serving(tmp_path, open_files) as process:
        with Client(process.address) as client:
            client.create_topic(PARTITIONS)
            for index in range(PARTITIONS):
                client.produce_with_retries(index, b"first")
                produced[index] += 1
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(process.address)) for _ in range(CLIENTS)]
            for turn in range(2):
                for number, client in enumerate(clients[: open_files // 4]):
                    for index in range(number, PARTITIONS, CLIENTS):
                        client.produce_with_retries(index, b"%d" % turn)
                        produced[index] += 1
                    fetched = client.fetch(range(PARTITIONS))
                    assert {code for code, _ in fetched.values()} <= {ErrorCode.NONE, *RETRIABLE}
        with Client(process.address) as client:
            for index in range(PARTITIONS):
                client.produce_with_retries(index, b"last")
                produced[index] += 1
        process.stop()
        assert not FAILED.search((tmp_path / "log").read_text())
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        process.start()
        assert process.wait_until_it_serves()
        with Client(process.address) as client:
            assert client.end_offsets(PARTITIONS) == produced
        process.stop()
    log = (tmp_path / "log").read_text()
    assert "file descriptors are left" in log
    assert not FAILED.search(log)


def test_broker_with_a_sufficient_limit_logs_no_warning(tmp_path: Path) -> None:
    with serving(tmp_path, 1024) as process:
        with Client(process.address) as client:
            client.create_topic(PARTITIONS)
            for index in range(PARTITIONS):
                client.produce_with_retries(index, b"v")
        process.stop()
    assert "descriptors" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("open_files", [8, 10, 12])
def test_broker_without_enough_descriptors_to_start_says_so_in_one_sentence(
    tmp_path: Path, open_files: int
) -> None:
    process = BrokerProcess(tmp_path / "data", tmp_path / "log", {}, open_files=(open_files, open_files))
    process.start()
    with pytest.raises(AssertionError, match="ended with status 1"):
        process.wait_until_it_serves()
    process.kill()
    [line] = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("kwire: ")
    assert "ulimit -n" in line


@contextmanager
def serving_with_errors_to(tmp_path: Path, stderr: int) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(tmp_path / "data")]
    command += ["--log-level", "debug", "--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "KWIRE_"))}
    with subprocess.Popen(command, cwd=ROOT, env=kept, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            assert process.stdout is not None
            found = re.search(rb"serves on ([\d.]+):(\d+),", process.stdout.readline())
            assert found is not None
            with Client((found[1].decode(), int(found[2]))) as client:
                yield process, client
        finally:
            process.kill()


def test_broker_serves_while_its_log_lines_do_not_fit_on_the_disk(tmp_path: Path) -> None:
    with (
        Path("/dev/full").open("wb") as full,
        serving_with_errors_to(tmp_path, full.fileno()) as (process, client),
    ):
        serve_and_stop(tmp_path, process, client)


def test_broker_serves_after_the_reader_of_its_log_lines_has_gone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        with serving_with_errors_to(tmp_path, writer) as (process, client):
            os.close(writer)
            os.close(reader)
            reader = -1
            serve_and_stop(tmp_path, process, client)
    finally:
        if reader >= 0:
            os.close(reader)


def serve_and_stop(tmp_path: Path, process: subprocess.Popen[bytes], client: Client) -> None:
    client.create_topic(5)
    for index in range(5):
        client.produce_with_retries(index, b"v")
    assert all(size for _, size in client.fetch(range(5)).values())
    client.close()
    process.terminate()
    assert process.wait(30) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
