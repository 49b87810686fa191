"""`kwire dump` of the log directory of a stopped broker."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kwire.cli.shared.errors import cannot_read
from kwire.cli.tools import main
from kwire.testing import Broker
from tests.cli.run_command import CommandResult, RunCommand

FIRST = "00000000000000000000"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with records, an aborted and a committed transaction, and a committed offset."""
    path = tmp_path_factory.mktemp("dump")
    settings = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
                "log.index.interval.bytes": 0}  # fmt: skip
    with Broker(settings, log_dir=path) as broker:
        servers = ["--bootstrap-server", broker.bootstrap_servers]
        main("produce", ["dumped", "one", "--key", "k", "--header", "h=x", *servers])
        main("produce", ["dumped", "two", "three", "--compression", "gzip", *servers])
        client = {"bootstrap.servers": broker.bootstrap_servers}
        producer = Producer({**client, "transactional.id": "dumping"})
        producer.init_transactions(5)
        for commit in (False, True):
            producer.begin_transaction()
            producer.produce("dumped-txn", "x")
            producer.flush(5)
            (producer.commit_transaction if commit else producer.abort_transaction)(5)
        main("groups", ["reset", "dumper", "--topic", "dumped", "--to", "2", "--execute", *servers])
    return path


@pytest.fixture
def dump(offline: RunCommand, data: Path) -> Callable[..., list[Any]]:
    def run(path: str, *arguments: str) -> list[Any]:
        result = offline("dump", str(data / path), *arguments, "--json")
        assert result.status == 0, result.err
        return [json.loads(line) for line in result.out.splitlines()]

    return run


Dump = Callable[..., list[Any]]


def test_dump_shows_batches_and_records_of_a_segment(dump: Dump) -> None:
    rows = dump(f"dumped-0/{FIRST}.log", "--records")
    assert [row["batch"] for row in rows if "batch" in row] == [0, 1]
    first, second = (row for row in rows if "batch" in row)
    assert (first["records"], first["codec"], first["position"], first["crc_valid"]) == (1, "none", 0, True)
    assert (second["records"], second["codec"], second["last_offset"]) == (2, "gzip", 2)
    assert second["position"] == first["size"]
    assert (first["first_sequence"], first["producer_epoch"]) == (0, 0)
    records = [row for row in rows if "offset" in row]
    assert [(row["offset"], row["key"], row["value"]) for row in records] == [
        (0, "k", "one"),
        (1, None, "two"),
        (2, None, "three"),
    ]
    assert records[0]["headers"] == [["h", "x"]]
    only = dump(f"dumped-0/{FIRST}.log", "--records", "--from", "2", "--until", "2")
    assert [row["offset"] for row in only if "offset" in row] == [2]


def test_dump_of_a_partition_shows_all_its_files(dump: Dump, data: Path) -> None:
    rows = dump("dumped-0")
    by_file: dict[str, list[Any]] = {}
    for row in rows:
        by_file.setdefault(Path(row.pop("file")).name, []).append(row)
    assert set(by_file) >= {f"{FIRST}.log", f"{FIRST}.index", f"{FIRST}.timeindex", "partition.metadata",
                            "leader-epoch-checkpoint"}  # fmt: skip
    size = by_file[f"{FIRST}.log"][0]["size"]
    assert by_file[f"{FIRST}.index"][-1] == {"offset": 2, "position": size}
    assert by_file[f"{FIRST}.timeindex"][-1]["offset"] in (1, 2)
    assert by_file["leader-epoch-checkpoint"] == [{"leader_epoch": 0, "start_offset": 0}]
    assert by_file["partition.metadata"][0]["version"] == "0"


def test_dump_shows_markers_and_the_transaction_index(dump: Dump) -> None:
    rows = dump("dumped-txn-0", "--records")
    assert [row["marker"] for row in rows if "marker" in row] == ["abort", "commit"]
    (aborted,) = [row for row in rows if row["file"].endswith(".txnindex")]
    assert (aborted["first_offset"], aborted["last_offset"]) == (0, 1)
    (producer,) = [row for row in rows if row["file"].endswith(".snapshot")]
    assert (producer["producer_id"], producer["txn_start_offset"]) == (aborted["producer_id"], None)


def test_dump_decodes_records_of_internal_topics(dump: Dump) -> None:
    offsets = [row for row in dump(f"__consumer_offsets-0/{FIRST}.log", "--records") if "offset" in row]
    (offset_commit,) = [row for row in offsets if row["key"]["type"] == "OffsetCommitKey"]
    assert (
        offset_commit["key"]["group"],
        offset_commit["key"]["topic"],
        offset_commit["value"]["offset"],
    ) == ("dumper", "dumped", 2)
    states = [row for row in dump(f"__transaction_state-0/{FIRST}.log", "--records") if "offset" in row]
    assert {row["key"]["transactional_id"] for row in states} == {"dumping"}
    metadata = dump("__cluster_metadata-0", "--records")
    records = [row["record"] for row in metadata if "record" in row]
    assert {"LeaderChangeMessage", "TopicRecord", "PartitionRecord"} <= {one["type"] for one in records}
    assert "dumped" in [one["name"] for one in records if one["type"] == "TopicRecord"]
    topic = next(one for one in records if one["type"] == "TopicRecord")
    assert re.fullmatch(r"[\w-]{22}", topic["topic_id"])
    plain = dump(f"__consumer_offsets-0/{FIRST}.log", "--records", "--as", "plain", "--key-format", "hex")
    assert plain[1]["key"].startswith("0001")


def test_dump_of_a_log_directory_shows_its_checkpoints(dump: Dump) -> None:
    rows = dump(".")
    points = {
        (row["topic"], row["partition"]): row["checkpoint"]
        for row in rows
        if row["file"].endswith("replication-offset-checkpoint")
    }
    assert points["dumped", 0] == 3
    assert any(row.get("node.id") == "1" for row in rows)


@pytest.fixture
def damaged(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data / "dumped-0", tmp_path / "dumped-0"))


def _problems(result: CommandResult) -> list[str]:
    assert result.status == 1
    assert result.err.startswith("problems found: ")
    return [line.strip() for line in result.out.splitlines() if "PROBLEM" in line]


def test_dump_of_a_running_broker_finds_no_problems(offline: RunCommand) -> None:
    """Indexes of active segments are preallocated."""
    with Broker() as broker:
        broker.produce("written", "one")
        partition_directory = Path(broker.log_dir) / "written-0"
        assert (partition_directory / f"{FIRST}.timeindex").stat().st_size > 1_000
        result = offline("dump", str(partition_directory), "--json")
    assert result.status == 0, result.out
    files = [Path(json.loads(line)["file"]).name for line in result.out.splitlines()]
    assert f"{FIRST}.log" in files
    assert f"{FIRST}.timeindex" not in files


def test_batch_with_a_wrong_crc_is_found(offline: RunCommand, damaged: Path) -> None:
    log = damaged / f"{FIRST}.log"
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    assert _problems(offline("dump", str(log), "--records")) == [
        "PROBLEM: the batch at byte 0 has a wrong CRC"
    ]


def test_truncated_batch_is_found(offline: RunCommand, damaged: Path) -> None:
    log = damaged / f"{FIRST}.log"
    log.write_bytes(log.read_bytes()[:-3])
    (offset_commit,) = _problems(offline("dump", str(log)))
    assert "invalid data after the last batch" in offset_commit
    log.write_bytes(b"x" * 100)
    assert "invalid data after" in _problems(offline("dump", str(log)))[0]


def test_wrong_index_entries_are_found(offline: RunCommand, damaged: Path) -> None:
    index = damaged / f"{FIRST}.index"
    index.write_bytes(b"\0\0\0\1\0\0\0\7")
    assert _problems(offline("dump", str(index))) == [
        "PROBLEM: byte 7 is not the start of a batch at or before offset 1"
    ]
    times = damaged / f"{FIRST}.timeindex"
    times.write_bytes((5).to_bytes(8, "big") + (2).to_bytes(4, "big"))
    assert "which is later" in _problems(offline("dump", str(times)))[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{FIRST}.txnindex", b"x"),
        ("00000000000000000003.snapshot", b"xxxxxxxxxxxxx"),
        ("leader-epoch-checkpoint", b"0\n7\n"),
        ("quorum-state", b"{}"),
    ],
)
def test_corrupt_small_files_are_found(
    offline: RunCommand, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert len(_problems(offline("dump", str(tmp_path / name)))) == 1


def test_dump_errors_are_one_sentence(offline: RunCommand, tmp_path: Path) -> None:
    assert "no such file" in offline("dump", str(tmp_path / f"{FIRST}.log")).sentence
    refused = PermissionError(13, "Permission denied")
    assert (
        str(cannot_read("x.log", refused))
        == "x.log: Permission denied: run this as the user that runs the broker"
    )
    assert "has no Kafka files" in offline("dump", str(tmp_path)).sentence
    (tmp_path / "x.txt").touch()
    assert "has an unknown name" in offline("dump", str(tmp_path / "x.txt")).sentence
    (tmp_path / "x.index").touch()
    assert "is not named after its base offset" in offline("dump", str(tmp_path / "x.index")).sentence
    assert offline("dump", str(tmp_path), "--from", "5", "--until", "4").status == 2
