"""The files of a broker, as Apache Kafka's kafka-dump-log prints them after the broker has stopped.

Both brokers must have the same segments and index entries after the same requests. This module runs last,
because it stops the broker.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker, run_tool
from interop.raw import create_topic, produce, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_groups import Member
from interop.scenarios.raw_produce import init_producer

TOPIC = "files"
COMPLAINTS = (
    "exception",
    "mismatch",
    "corrupt",
    "invalid",
    "not monotonic",
    "error",
    "found non-consecutive",
    "out of",
)


def dump(*files: Path, options: tuple[str, ...] = ()) -> list[str]:
    """Return the lines that DumpLogSegments prints for the files."""
    run = run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(str(file) for file in files), *options
    )
    return [*run.stdout.splitlines(), *run.stderr.splitlines(), f"exit {run.returncode}"]


def dump_errors(lines: list[str]) -> list[str]:
    return [
        line for line in lines if any(word in line.lower() for word in COMPLAINTS) and "payload" not in line
    ]


def batches_of(lines: list[str]) -> list[str]:
    """Return the lines about batches without producer ids, create times and CRCs."""
    kept = [line for line in lines if line.startswith("baseOffset")]
    return [re.sub(r"producerId: \d+|crc: \d+|CreateTime: \d{13}", "", line) for line in kept]


def write(broker: Broker) -> None:
    """Write several segments with every kind of batch, with an idempotent producer, and commit offsets."""
    with RawClient(broker.bootstrap) as client, Member(broker, TOPIC) as member:
        create_topic(client, TOPIC, 1, {"segment.bytes": "1048576"})
        producer = init_producer(client)
        for index in range(400):
            kind = index % 4
            batch = Batch(
                [Record(b"%04d" % index * (1 + index % 50) * 10, key=b"k%d" % index, timestamp_delta=delta)
                 for delta in range(1 + index % 5)],
                base_timestamp=1_700_000_000_000 + index * 1000,
                attributes=1 if kind == 3 else 0,
                producer_id=producer["ProducerId"] if kind == 2 else -1,
                producer_epoch=0 if kind == 2 else -1,
                base_sequence=sum(1 + past % 5 for past in range(2, index, 4)) if kind == 2 else -1,
            )  # fmt: skip
            response = produce(client, TOPIC, batch.encode())
            assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, (index, response)
        wait_for_coordinator(client, TOPIC)
        member.join()
        member.sync({member.member_id: b"\0\0\0\0\0\0\xff\xff\xff\xff"})
        for offset in range(5):
            member.commit(TOPIC, offset)


@scenario(seconds=240)
def dump_log(broker: Broker) -> Any:
    """Dump segments, indexes, snapshots, the offsets topic and the metadata log."""
    write(broker)
    broker.stop()
    try:
        return observe_files(broker.log_dir)
    finally:
        broker.start()


def observe_files(log_dir: Path) -> Any:
    directory = log_dir / f"{TOPIC}-0"
    seen: dict[str, Any] = {"files": sorted(path.name for path in directory.iterdir())}
    seen["sizes"] = {path.name: path.stat().st_size for path in sorted(directory.glob("*.*index"))}
    # An earlier scenario may have killed the broker. After a kill, kwire's files differ: see
    # docs/operations.md.
    seen["around"] = sorted(
        path.name
        for path in log_dir.iterdir()
        if path.is_file() and not fnmatch(path.name, "kwire-flight-*.jsonl")
    )
    for kind in ("log", "index", "timeindex"):
        files = sorted(directory.glob(f"*.{kind}"))
        # With deep iteration, the tool reads every record and checks each index entry against the segment.
        lines = dump(*files, options=("--deep-iteration",) if kind == "log" else ())
        seen[f"{kind} complaints"] = dump_errors(lines)
        seen[f"{kind} lines"] = (
            batches_of(lines)
            if kind == "log"
            else [line for line in lines if line.startswith(("offset:", "timestamp:"))]
        )
        seen[f"{kind} exit"] = lines[-1]
    seen["index sanity"] = dump_errors(
        dump(
            *sorted(directory.glob("*.index")),
            *sorted(directory.glob("*.timeindex")),
            options=("--index-sanity-check",),
        )
    )
    snapshots = dump(*sorted(directory.glob("*.snapshot")))
    seen["snapshots"] = [
        re.sub(r"producerId: \d+|lastTimestamp: \d+", "", line) for line in snapshots if "producerId" in line
    ]
    seen["snapshot complaints"] = dump_errors(snapshots)
    seen["leader epochs"] = (directory / "leader-epoch-checkpoint").read_text().split()
    seen["partition metadata"] = re.sub(
        r"topic_id: \S+", "topic_id: <id>", (directory / "partition.metadata").read_text()
    )
    seen["offsets topic"] = offsets_topic_records(log_dir)
    seen["metadata"] = metadata_record_types(log_dir / "__cluster_metadata-0")
    return seen


def offsets_topic_records(log_dir: Path) -> Any:
    """Return keys and payloads of the group's records in __consumer_offsets, and errors of the dump."""
    files = [path for path in sorted(log_dir.glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    lines = dump(*files, options=("--offsets-decoder",))
    mine = [line for line in lines if f'"group":"{TOPIC}"' in line]
    payloads = [line[line.index("payload:") :] if "payload:" in line else line for line in mine]
    keys = [re.search(r"key: (\{.*?\}\}?)", line) for line in mine]
    return {
        "complaints": dump_errors(lines),
        "keys": [found[1] if found else None for found in keys],
        "payloads": [
            re.sub(
                r'"(commitTimestamp|currentStateTimestamp)":\d+|"(memberId|leader|clientId|clientHost|topicId)":"[^"]*"',
                r"\1\2",
                line,
            )
            for line in payloads
        ],
    }


def metadata_record_types(directory: Path) -> Any:
    """Return the set of record types in the metadata log, and errors of the dump."""
    lines = dump(*sorted(directory.glob("*.log")), options=("--cluster-metadata-decoder",))
    kinds = re.findall(r'"type":"([A-Z_]+)","version":(\d+)', "\n".join(lines))
    return {
        "complaints": [line for line in dump_errors(lines) if '"type"' not in line],
        "kinds": sorted({f"{kind} v{version}" for kind, version in kinds if kind != "NO_OP_RECORD"}),
        "index complaints": dump_errors(
            dump(*sorted(directory.glob("*.index")), *sorted(directory.glob("*.timeindex")))
        ),
    }
