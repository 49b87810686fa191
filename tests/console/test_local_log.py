"""Searches that skip records by reading the broker's log files: they find the same records."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.broker.storage.checkpoints import read_topic_id
from kwire.broker.storage.disk import RealDisk, RealFile
from kwire.broker.storage.log.log_config import LogConfig
from kwire.console.fetching import MAX_HEADERS
from kwire.console.local_log import LocalLog, local_directory
from kwire.console.page import CLIENT_ID, ConsoleSettings
from kwire.testing import Broker
from kwire.wire.batch import HEADER_BYTES, batches, build
from kwire.wire.primitives import Uuid
from tests.broker.storage.log_harness import NOW_MS, LogHarness
from tests.console.conftest import ConsoleClient, run_console

TOPIC = "searched"
COUNT = 3_000
WANTED = (0, 1_000, 1_999, COUNT - 1)
"""Numbers of the records with the key, including the first and the last."""
KEY = b"wanted"


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """Run a broker with a partition of several segments, every codec and aborted transactions."""
    with Broker({"log.segment.bytes": 1024 * 1024}) as running:
        servers = {"bootstrap.servers": running.bootstrap_servers}
        config = {"index.interval.bytes": "4096"}
        admin = AdminClient({**servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(10)
        draw = Random(1)
        codecs = ("none", "gzip", "snappy", "lz4", "zstd")
        for number, codec in enumerate(codecs):
            producer = Producer(
                {
                    **servers,
                    "compression.type": codec,
                    "linger.ms": 5,
                    "batch.num.messages": 4,
                    "transactional.id": codec,
                }
            )
            producer.init_transactions(10)
            for half in range(2):
                producer.begin_transaction()
                for at in range(COUNT * (2 * number + half) // 10, COUNT * (2 * number + half + 1) // 10):
                    key = KEY if at in WANTED else b"other-wanted"
                    producer.produce(TOPIC, f"value {at} {draw.randbytes(700).hex()}", key)
                producer.flush(10)  # an abort would discard unsent records
                producer.commit_transaction(10) if half else producer.abort_transaction(10)
        yield running


def directory(broker: Broker) -> Path:
    return Path(broker.log_dir) / f"{TOPIC}-0"


def search(broker: Broker, offset: int = 0, end: int = 1 << 40, max_bytes: int = 1 << 40) -> tuple[int, int]:
    return open_local_log(directory(broker)).skip(offset, end, max_bytes)


def open_local_log(path: Path, is_out_of_time: Callable[[], bool] = lambda: False) -> LocalLog:
    return LocalLog(str(path), KEY, is_out_of_time)


def fetches(broker: Broker) -> int:
    return len(broker.requests.find("Fetch", client_id=CLIENT_ID))


async def test_local_search_finds_the_same_with_fewer_fetches(own_broker: Broker) -> None:
    place = ConsoleSettings(own_broker.bootstrap_servers, 1, (str(own_broker.log_dir),), may_write=True)
    assert len(list(directory(own_broker).glob("*.log"))) > 2
    pages, counts = [], []
    for asks in (place, place._replace(log_dirs=()), place._replace(node_id=2)):
        before = fetches(own_broker)
        async with run_console(asks) as console:
            pages.append(await _rows(console))
        counts.append(fetches(own_broker) - before)
    assert pages[0] == pages[1]
    assert pages[0] == pages[2].replace("Broker 2 at", "Broker 1 at")
    assert [f"value {number} " in pages[0] for number in WANTED] == [True] * len(WANTED)
    assert pages[0].count("aborted") == 2
    assert counts[1] == counts[2] > 2 * counts[0]


async def _rows(console: ConsoleClient) -> str:
    return await console.page(f"/topics/{TOPIC}/0?from=beginning&key=wanted")


def test_next_matching_offset_is_found_from_each_offset(own_broker: Broker) -> None:
    found = matching_offsets(own_broker)
    end = own_broker.end_offsets(TOPIC)[0]
    assert len(found) == len(WANTED)
    for offset in range(0, end, 37):
        to, read_bytes = search(own_broker, offset, end)
        coming = next((one for one in found if one >= offset), end)
        # Position of the batch with the record; the batch may start earlier.
        assert offset <= to <= coming
        assert (read_bytes > 0) == (to > offset)
        assert search(own_broker, to, end) == (to, 0)
    assert search(own_broker, found[-1] + 1, end)[0] == end


def matching_offsets(broker: Broker) -> list[int]:
    """Return the offsets of the records with the key, read by confluent-kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "not-used",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            break
        if message.key() == KEY:
            offset = message.offset()
            assert offset is not None
            found.append(offset)
    consumer.close()
    return found


def test_search_is_bounded(own_broker: Broker) -> None:
    offset = 100
    to, _ = search(own_broker, offset)
    assert to > 2 * offset
    assert offset < search(own_broker, offset, end=to // 2)[0] <= to // 2
    half, read_bytes = search(own_broker, offset, max_bytes=300_000)
    assert offset < half < to
    assert 300_000 <= read_bytes < 400_000
    assert open_local_log(directory(own_broker), lambda: True).skip(offset, to, 1 << 40) == (offset, 0)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)


def _redirect_index_entries(path: Path) -> None:
    """Point every index entry to the position of the last one."""
    content = path.read_bytes()
    path.write_bytes(b"".join(content[at : at + 4] + content[-4:] for at in range(0, len(content), 8)))


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".log", Path.unlink),
        (".log", _truncate),
        (".log", _corrupt),
        (".index", Path.unlink),
        (".index", _truncate),
        (".index", _corrupt),
        (".index", _redirect_index_entries),
        (".index", lambda path: path.write_bytes(b"")),
        (".index", lambda path: path.write_bytes(path.read_bytes()[:-3])),
        (".index", lambda path: path.write_bytes(b"\xff" * path.stat().st_size)),
        (".log", lambda path: shutil.copy(path.with_suffix(".index"), path)),
    ],
)
def test_damaged_files_hide_no_matching_record(
    own_broker: Broker, tmp_path: Path, suffix: str, damage: Callable[[Path], object]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory(own_broker), copy)
    found = matching_offsets(own_broker)
    for path in sorted(copy.glob(f"*{suffix}"))[:-1]:
        damage(path)
    for offset in range(0, found[-1], 211):
        to, _ = open_local_log(copy).skip(offset, 1 << 40, 1 << 40)
        assert offset <= to <= next(one for one in found if one >= offset)


def test_damaged_batch_is_not_skipped(own_broker: Broker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory(own_broker), copy)
    first = sorted(copy.glob("*.log"))[0]
    content = bytearray(first.read_bytes())
    places = [(at, header) for at, header in batches(content) if header.base_offset > 100]
    at, header = places[5]
    content[at + HEADER_BYTES - 20] ^= 1  # its producer id, which only the CRC covers
    first.write_bytes(content)
    assert open_local_log(copy).skip(100, 1 << 40, 1 << 40)[0] == header.base_offset


def test_record_with_too_many_headers_is_left_to_the_broker(tmp_path: Path) -> None:
    bench = LogHarness(RealDisk(), str(tmp_path))
    log = bench.open()
    for headers in (0, MAX_HEADERS, MAX_HEADERS + 1, 0):
        batch = build([(NOW_MS, b"other-wanted", b"", [("", None)] * headers)])
        log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    assert open_local_log(Path(bench.directory)).skip(0, 4, 1 << 40)[0] == 2


def test_few_bytes_are_read_before_an_offset(own_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index gives the position, also in the active segment, whose index is preallocated."""
    read: list[tuple[str, int]] = []

    def read_noted(file: RealFile, position: int, size: int) -> bytes:
        read.append((file.path, position))
        return read_at(file, position, size)

    read_at = RealFile.read_at
    monkeypatch.setattr(RealFile, "read_at", read_noted)
    paths = sorted(directory(own_broker).glob("*.log"))
    for path in paths:
        places = list(batches(path.read_bytes()))
        # The last entries of the active index are only in the broker's memory.
        before = 80 if path == paths[-1] else 4
        assert len(places) > before
        for number in (before, len(places) - 1):
            read.clear()
            header = places[number][1]
            search(own_broker, header.base_offset, header.next_offset)
            logs = [(name, position) for name, position in read if name.endswith(".log")]
            assert logs[0][0] == str(path)
            least = min(position for name, position in logs if name == str(path))
            assert least >= places[number - before][0]


@pytest.mark.parametrize("seed", range(20))
def test_truncated_log_with_stale_index_is_read_correctly(tmp_path: Path, seed: int) -> None:
    """The index has stale entries that point into the middle of batches."""
    draw = Random(seed)
    bench = LogHarness(
        RealDisk(),
        str(tmp_path),
        LogConfig(index_interval_bytes=1, segment_bytes=1 << 26, segment_index_bytes=1 << 16),
    )
    log = bench.open()
    found: list[int] = []

    def add(count: int, sizes: Sequence[int]) -> None:
        for _ in range(count):
            key = KEY if draw.random() < 0.03 else b"other"
            if key is KEY:
                found.append(log.log_end_offset)
            value = bytes(build([(NOW_MS, b"x", draw.randbytes(draw.choice(sizes)), [])]))
            log.append(memoryview(build([(NOW_MS, key, 3 * value, [])])), leader_epoch=0, now_ms=NOW_MS)
            log.commit()

    add(200, [100, 174, 900])
    cut = draw.randrange(10, 100)
    log.truncate_to(cut)
    log.flush()
    found[:] = [offset for offset in found if offset < cut]
    add(draw.randrange(80, 140), [1800, 5000, 174])
    end = log.log_end_offset
    for offset in range(end):
        to, _ = open_local_log(Path(bench.directory)).skip(offset, end, 1 << 40)
        assert to <= next((one for one in found if one >= offset), end), offset


def test_directory_of_another_topic_id_is_ignored(own_broker: Broker, tmp_path: Path) -> None:
    topic_id = read_topic_id(RealDisk(), str(directory(own_broker)))
    assert topic_id is not None
    dirs = (str(tmp_path), str(own_broker.log_dir))
    assert local_directory(dirs, TOPIC, 0, topic_id) == str(directory(own_broker))
    assert local_directory(dirs, TOPIC, 0, Uuid(bytes(16))) is None
    assert local_directory(dirs, TOPIC, 1, topic_id) is None
    # As in a failed log directory, after the broker has created the partition in another one.
    (tmp_path / f"{TOPIC}-0").mkdir()
    assert local_directory(dirs, TOPIC, 0, topic_id) is None


def test_missing_directory_skips_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        assert open_local_log(path).skip(5, 10, 1 << 40) == (5, 0)
