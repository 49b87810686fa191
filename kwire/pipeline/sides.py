"""The inputs of audit and profile. Topics, data directories and archives are loaded with the same columns."""

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
    """Return the names in a comma-separated list, without surrounding spaces and without empty names."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def check_topics(archive: Archive, topics: frozenset[str] | None) -> None:
    """Raise ArchiveError if the archive is empty, or if it has never contained one of the topics."""
    commits = archive.commits_without_files()
    if not commits:
        raise ArchiveError(f"{archive.directory} has no manifests: it is not an archive, or it is empty")
    known = {topic for commit in commits for topic in commit.ranges}
    for topic in sorted((topics or frozenset()) - known):
        there = ", ".join(sorted(known)) or "none"
        raise ArchiveError(f"{archive.directory} does not have topic {topic}; its topics: {there}")


class Side(NamedTuple):
    """An input of audit or profile: topics of a cluster, a data directory or an archive."""

    format: str
    options: dict[str, str]
    """The options of Spark's source, for the formats `kafka` and `kwire`."""
    directory: Path | None
    """The archive's directory, for the format `archive`."""
    topics: frozenset[str] | None
    """The topics to read from an archive; None for all topics."""

    @classmethod
    def of(cls, config: JobConfig, name: str) -> Side:
        """Read the side in the table `name`. Raises ConfigError if the table is missing or invalid."""
        table = config.table(name)
        format_ = table.text("format", one_of=FORMATS)
        directory = table.text("directory", "") if format_ == "archive" else ""
        if format_ == "archive" and not directory:
            raise ConfigError(f"{name}.directory is missing: set it to the directory of the archive")
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
        """A description of the side for people."""
        if self.directory is not None:
            return f"archive {self.directory}"
        given = {name.lower(): value for name, value in self.options.items()}
        return f"{self.format} {given.get('path', given.get('kafka.bootstrap.servers', ''))}"

    def load(self, spark: SparkSession) -> DataFrame:
        """Load the side's records with the columns COLUMNS.

        Raises ArchiveError if an archive does not have one of the topics, or has no matching records.
        """
        if self.directory is not None:
            archive = Archive(self.directory)
            check_topics(archive, self.topics)
            return load_archive(spark, archive, RecordFilter(self.topics))
        options = {"startingOffsets": "earliest", **self.options, "includeHeaders": "true"}
        return spark.read.format(self.format).options(**options).load().select(*COLUMNS)
