"""The sides that jobs read: a topic of a cluster, a data directory, an archive, all with the same columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.pipeline.archive.manifest import Archive, ArchiveError
from kwire.pipeline.archive.reading import RecordFilter, load_archive
from kwire.pipeline.config import ConfigError, JobConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("kafka", "kwire", "archive")
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def split_names(text: str) -> frozenset[str]:
    """The names between commas."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def check_topics(archive: Archive, topics: frozenset[str] | None) -> None:
    """ArchiveError for a topic that the archive has never seen, as it may be misspelt, or for no archive."""
    if not archive.steps():
        raise ArchiveError(f"{archive.directory} is no archive, or an empty one: it has no manifests")
    known = {topic for commit in archive.steps() for topic in commit.ranges}
    for topic in sorted((topics or frozenset()) - known):
        there = ", ".join(sorted(known)) or "none"
        raise ArchiveError(f"{archive.directory} has no topic {topic}: there is {there}")


class Side(NamedTuple):
    """Where records are."""

    format: str
    options: dict[str, str]
    """Spark's, for `kafka` and `kwire`."""
    directory: Path | None
    """The archive's."""
    topics: frozenset[str] | None
    """Of the archive; None for all."""

    @classmethod
    def of(cls, config: JobConfig, name: str) -> Side:
        """The table of that name. ConfigError."""
        table = config.table(name)
        format_ = table.text("format", one_of=FORMATS)
        directory = table.text("directory", "") if format_ == "archive" else ""
        if format_ == "archive" and not directory:
            raise ConfigError(f"{name}.directory is missing: where is the archive?")
        topics = split_names(table.text("topics", ""))
        found = cls(
            format_,
            table.table("options").texts(),
            Path(directory) if directory else None,
            topics or None,
        )
        table.check_unknown_keys()
        return found

    @property
    def name(self) -> str:
        """For people."""
        if self.directory is not None:
            return f"archive {self.directory}"
        given = {name.lower(): value for name, value in self.options.items()}
        return f"{self.format} {given.get('path', given.get('kafka.bootstrap.servers', ''))}"

    def load(self, spark: SparkSession) -> DataFrame:
        """All records there are now."""
        if self.directory is not None:
            archive = Archive(self.directory)
            check_topics(archive, self.topics)
            return load_archive(spark, archive, RecordFilter(self.topics))
        options = {"startingOffsets": "earliest", **self.options, "includeHeaders": "true"}
        return spark.read.format(self.format).options(**options).load().select(*COLUMNS)
