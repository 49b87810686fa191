"""The configuration file of a job, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.pipeline.config import ConfigError, Input, JobConfig

GOOD = """
[input]
format = "kafka"
[input.options]
subscribe = "flights"
includeHeaders = true
minPartitions = 4
"""


def load(tmp_path: Path, text: str) -> JobConfig:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return JobConfig.load(path)


def test_an_input_is_read(tmp_path: Path) -> None:
    wanted = {"subscribe": "flights", "includeHeaders": "true", "minPartitions": "4"}
    assert load(tmp_path, GOOD).input() == Input("kafka", wanted)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", r"the table \[input\] is missing"),
        (
            "[[input]]",
            r"input must be one table, written \[input\], not an array of tables like \[\[input\]\]",
        ),
        ("[input", "is not valid TOML"),
        ("[input]\nformat = 'csv'", "input.format must be one of kafka, kwire, not 'csv'"),
        ("[input]\nformat = 3", "input.format must be a string, not 3"),
        ("[input]\nformats = 'kafka'", "unknown key input.formats; the keys of input: format, options"),
        ("[input]", "input.options must have exactly one of subscribe, subscribePattern, assign"),
        ("[input.options]\nassign='a'\nSubscribe='b'", "input.options must have exactly one of subscribe"),
        ("[[input.options]]\nsubscribe='a'", r"input\.options must be one table, written \[input\.options\]"),
        ("[input]\n[input.options]\na = [1]", "input.options.a must be a string, a number or a boolean"),
    ],
)
def test_a_configuration_error_is_named(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load(tmp_path, text).input()


@pytest.mark.parametrize("name", ["__consumer_offsets", "__share_group_state", "__cluster_metadata"])
def test_a_job_does_not_write_to_an_internal_topic(tmp_path: Path, name: str) -> None:
    table = load(tmp_path, f"[windows]\ntopic = '{name}'\nother = 'a'").table("windows")
    with pytest.raises(ConfigError, match=f"windows.topic is the internal topic {name}"):
        table.topic("topic")
    assert table.topic("other") == "a"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        JobConfig.load(tmp_path / "absent.toml")


def test_numbers_and_flags(tmp_path: Path) -> None:
    table = load(tmp_path, "[a]\nn = 3\nf = true\nwrong = true\n").table("a")
    assert table.number("n") == 3
    assert table.number("other", 7) == 7
    assert table.flag("f", False)
    with pytest.raises(ConfigError, match=r"a\.wrong must be an integer, not True"):
        table.number("wrong")
    with pytest.raises(ConfigError, match=r"a\.n must be at least 4, not 3"):
        table.number("n", least=4)
    with pytest.raises(ConfigError, match=r"a\.absent is missing"):
        table.number("absent")


@pytest.mark.parametrize(
    ("key", "default"), [("directory", None), ("job", None), ("report", "profile.html"), ("job", "replay")]
)
def test_an_empty_name_is_refused(tmp_path: Path, key: str, default: str | None) -> None:
    with pytest.raises(ConfigError, match=rf"^a\.{key} is empty$"):
        load(tmp_path, f"[a]\n{key} = ''").table("a").text(key, default)


@pytest.mark.parametrize("default", [None, "elsewhere"])
def test_an_empty_path_is_refused(tmp_path: Path, default: str | None) -> None:
    with pytest.raises(ConfigError, match=r"^a\.anywhere is empty$"):
        load(tmp_path, "[a]\nanywhere = ''").table("a").path("anywhere", default)


@pytest.mark.parametrize(("key", "default"), [("report", ""), ("suffix", ""), ("groups", ".*")])
def test_an_empty_optional_string_is_accepted(tmp_path: Path, key: str, default: str) -> None:
    assert load(tmp_path, f"[a]\n{key} = ''").table("a").text(key, default) == ""


def test_a_nul_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^a\.suffix contains a NUL character: 'b\\x00c'$"):
        load(tmp_path, '[a]\nsuffix = "b\\u0000c"').table("a").text("suffix", "")


TABLES = {"archive": ("input", "values"), "compact": (), "windows": ("input",)}


@pytest.mark.parametrize(
    ("job", "text", "what"),
    [
        ("archive", "[archiv]\n[input]", "unknown table [archiv]: did you mean [archive]?"),
        ("archive", "[archive]\n[input]\n[value]", "unknown table [value]: did you mean [values]?"),
        (
            "archive",
            "directory = 'x'\n[archive]",
            "unknown key directory outside of the tables: archive reads [archive], [input], [values]",
        ),
        ("windows", "[windows]\n[values]", "unknown table [values]: windows reads [input], [windows]"),
        ("archive", "[archive]\n[input]\n[values]", None),
        ("compact", "[archive]\n[compact]\n[input]\n[values]", None),
    ],
)
def test_unknown_tables_are_named(tmp_path: Path, job: str, text: str, what: str | None) -> None:
    config = load(tmp_path, text)
    if what is None:
        config.check_tables(job, TABLES)
    else:
        with pytest.raises(ConfigError) as caught:
            config.check_tables(job, TABLES)
        assert str(caught.value) == what


@pytest.mark.parametrize("text", ["10 seconds", "1 minute 30 seconds", "interval 2 Hours", "availableNow"])
def test_a_trigger(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, f"[a]\ntrigger = '{text}'").table("a").trigger() == text
    assert load(tmp_path, "[a]").table("a").trigger() == "availableNow"


@pytest.mark.parametrize("text", ["10 parsecs", "10", "seconds", "", "1 month"])
def test_an_invalid_trigger_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"a\.trigger must be availableNow or an interval like '10 seconds'"
    ):
        load(tmp_path, f"[a]\ntrigger = '{text}'").table("a").trigger()


@pytest.mark.parametrize("key", ["directory", "checkpoint", "report", "into_directory"])
@pytest.mark.parametrize("url", ["file:///srv/a", "file:/srv/a", "file:a", "hdfs://n/a", "s3a://b/a", "gs:"])
def test_a_url_instead_of_a_path_is_refused(tmp_path: Path, key: str, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"[a]\n{key} = '{url}'").table("a").text(key)
    assert str(caught.value) == f"a.{key} must be a path like '/srv/kwire', not the URL '{url}'"


@pytest.mark.parametrize("path", ["/srv/a", "a", "a:b", "/srv/file:a", "/srv/x://y", "./file:a"])
def test_any_path_is_accepted(tmp_path: Path, path: str) -> None:
    assert load(tmp_path, f"[a]\ndirectory = '{path}'").table("a").path("directory") == Path(path)
