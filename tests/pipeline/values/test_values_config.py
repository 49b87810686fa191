"""The table [values], and the dead letters of a step's files, without Spark and without a cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kwire.pipeline.archive.manifest import ArchiveError, DataFile
from kwire.pipeline.config import ConfigError, Input, JobConfig
from kwire.pipeline.values.dead_letters import DeadLetters, check_output_topic, deliver_partition, undecodable
from kwire.pipeline.values.settings import ValuesConfig

KAFKA = Input("kafka", {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"})
AVRO = {"format": "avro", "registry": "http://r"}


def settings(values: Any, input_: Input = KAFKA) -> ValuesConfig | None:
    return ValuesConfig.of(JobConfig({"values": values}), input_)


class TestSettings:
    def test_values_are_not_decoded_without_the_table_or_as_bytes(self) -> None:
        assert ValuesConfig.of(JobConfig({}), KAFKA) is None
        assert settings({"format": "bytes"}) is None

    def test_missing_keys_default_to_the_input(self) -> None:
        found = settings({**AVRO, "dead_letter": "d"})
        assert found is not None
        assert (found.subject, found.client) == ("orders-value", {"bootstrap.servers": "b:9092"})
        found = settings(AVRO, Input("kafka", {"assign": '{"t": [0, 1]}'}))
        assert found is not None
        assert found.subject == "t-value"

    def test_a_schema_is_a_file_or_its_text(self, tmp_path: Path) -> None:
        path = tmp_path / "s.avsc"
        path.write_text('"int"')
        for schema in (str(path), '"int"'):
            found = settings({**AVRO, "schema": schema})
            assert found is not None
            assert (found.schema, found.subject) == ('"int"', "")

    def test_numeric_registry_settings_become_numbers(self) -> None:
        found = settings({**AVRO, "registry_client": {"timeout": 5, "basic.auth.user.info": "a:b"}})
        assert found is not None
        assert dict(found.registry_settings) == {"timeout": 5, "basic.auth.user.info": "a:b"}

    @pytest.mark.parametrize(
        ("values", "input_", "why"),
        [
            ({}, KAFKA, "values.format is missing"),
            ({"format": "xml"}, KAFKA, "values.format must be one of avro, json, text, bytes"),
            ({"format": "avro"}, KAFKA, "values.registry is missing"),
            ({**AVRO, "schema": "/nowhere.avsc"}, KAFKA, "values.schema must be a file with an Avro schema"),
            ({**AVRO, "shade": 1}, KAFKA, "unknown key values.shade"),
            ({"format": "text", "schema": "a INT"}, KAFKA, "values.schema requires format avro or json"),
            (AVRO, Input("kafka", {"subscribe": "a,b"}), "values.subject or values.schema is required"),
            (AVRO, Input("kafka", {"subscribePattern": "a"}), "values.subject or values.schema is required"),
            (
                {"format": "text", "dead_letter": "d"},
                Input("kwire", {"path": "p"}),
                "values.client is missing",
            ),
        ],
    )
    def test_a_configuration_error_names_the_key(self, values: Any, input_: Input, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            settings(values, input_)


def staged(place: Path, name: str, offsets: list[int], bad: set[int]) -> DataFile:
    """Write a file of a step with INT96 timestamps, as Spark writes them."""
    times = [datetime(2013, 1, 1, tzinfo=UTC) + timedelta(seconds=offset) for offset in offsets]
    table = pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            "key": pa.array([None if n % 2 else b"k" for n in offsets], pa.binary()),
            "value": pa.array([str(n).encode() for n in offsets], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": None}] if n % 3 == 0 else None for n in offsets],
                pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
            ),
            "data": pa.array([None if n in bad else str(n) for n in offsets], pa.string()),
            "data_error": pa.array([f"why {n}" if n in bad else None for n in offsets], pa.string()),
        }
    )
    pq.write_table(table, place / name, row_group_size=4, use_deprecated_int96_timestamps=True)
    return DataFile(name, "t", 3, "2013-01-01", offsets[0], offsets[-1], len(offsets), 0, "")


def test_dead_letters_are_the_undecodable_records_of_a_step(tmp_path: Path) -> None:
    bad = {0, 3, 9, 30, 31}
    # Records of other dates are in other files, with offsets between those of this file.
    files = [
        staged(tmp_path, "a", [0, 2, 4, 6, 8, 30, 32, 34], bad),
        staged(tmp_path, "b", [1, 3, 5, 7, 9, 31, 33], bad),
    ]
    found = list(undecodable(tmp_path, files, 0))
    assert [letter.source_offset for letter in found] == sorted(bad)
    assert [letter.source_offset for letter in undecodable(tmp_path, files, 9)] == [9, 30, 31]
    letter = found[1]
    assert (letter.key, letter.value) == (None, b"3")
    assert letter.headers == [
        ("h", None),
        ("kwire.error", b"why 3"),
        ("kwire.topic", b"t"),
        ("kwire.partition", b"3"),
        ("kwire.offset", b"3"),
        ("kwire.timestamp", b"1356998403000"),
    ]
    assert found[3].headers[0] == ("h", None)
    assert found[0].key == b"k"


def test_no_request_is_sent_without_dead_letters(tmp_path: Path) -> None:
    letters = DeadLetters({"bootstrap.servers": "nowhere.invalid:1"}, "d", 2, "job")
    files = [staged(tmp_path, "a", [0, 1], set())]
    assert deliver_partition(letters, tmp_path, files) == 0


def test_each_source_partition_has_its_own_job_name() -> None:
    letters = DeadLetters({}, "d", 2, "job")
    assert letters.target("t", 3)[1:4] == ("d", 1, "job.t.3")
    assert letters.target("t", 1).job != letters.target("t", 3).job


def test_dead_letters_into_an_input_topic_are_refused(tmp_path: Path) -> None:
    files = [staged(tmp_path, "a", [0], set())]
    check_output_topic("d", files)
    with pytest.raises(ArchiveError, match="dead_letter t is also a topic of the input"):
        check_output_topic("t", files)


def test_all_settings_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[values]\nformat = "json"\nschema = "id INT"\n')
    found = ValuesConfig.of(JobConfig.load(path), KAFKA)
    assert found is not None
    assert json.dumps([found.format, found.schema]) == '["json", "id INT"]'
