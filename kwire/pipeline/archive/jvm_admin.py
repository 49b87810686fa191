"""An admin client in Spark's JVM that looks up topic ids, with the settings of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from kwire.pipeline.archive.manifest import ArchiveError
from kwire.pipeline.config import ConfigError
from kwire.pipeline.origin import UNKNOWN, Origin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_MS: Final = 30_000
NO_ID: Final = "A" * 22
"""The topic id that a broker returns if it does not support topic ids."""
_CLIENT: Final = "kafka."


class JvmAdmin:
    """An admin client for the cluster and the topics in the options of Spark's Kafka source."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Create the client. Raises ArchiveError if its settings are invalid."""
        self._options = {name.lower(): value for name, value in options.items()}
        self._bootstrap_servers = self._options.get("kafka.bootstrap.servers", "")
        self._jvm: Any = spark.sparkContext._jvm
        settings = self._jvm.java.util.HashMap()
        for name, value in self._options.items():
            if name.startswith(_CLIENT):
                settings.put(name.removeprefix(_CLIENT), value)
        settings.put("default.api.timeout.ms", str(TIMEOUT_MS))
        settings.put("request.timeout.ms", str(TIMEOUT_MS // 2))
        settings.put("client.id", "kwire-archive")
        self._admin = self._call(
            lambda: self._jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        )

    def origins(self, topics: Collection[str] | None = None) -> dict[str, Origin]:
        """Look up the origins of topics, by default of all topics that the options select.

        Raises ArchiveError if a topic does not exist or the request fails, or ConfigError if an option is
        malformed.
        """
        names = self._topic_names() if topics is None else sorted(topics)
        cluster = self._call(lambda: self._admin.describeCluster().clusterId().get())
        java_names = self._jvm.java.util.ArrayList()
        for name in names:
            java_names.add(name)
        futures = self._call(lambda: self._admin.describeTopics(java_names).topicNameValues())
        found = {}
        for name in names:
            topic_id = self._call(lambda name=name: futures.get(name).get().topicId().toString(), name)
            found[name] = Origin(cluster or UNKNOWN, name, UNKNOWN if topic_id == NO_ID else topic_id)
        return found

    def _topic_names(self) -> list[str]:
        options = self._options
        if "subscribe" in options:
            return sorted({name.strip() for name in options["subscribe"].split(",") if name.strip()})
        if "subscribepattern" in options:
            there = self._call(lambda: self._admin.listTopics().names().get())
            names = self._jvm.java.util.ArrayList(there)
            names.removeIf(self._pattern(options["subscribepattern"]).asMatchPredicate().negate())
            # Use one call for all names, because each call to the JVM is slow.
            joined = self._jvm.java.lang.String.join("\n", names)
            return sorted(joined.split("\n")) if joined else []
        try:
            return sorted(json.loads(options["assign"]))
        except (ValueError, TypeError):
            raise ConfigError('input.options.assign must look like {"topic": [0, 1]}') from None

    def _pattern(self, text: str) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return self._jvm.java.util.regex.Pattern.compile(text)
        except Py4JJavaError as error:
            why = error.java_exception.getMessage()
            raise ConfigError(f"input.options.subscribePattern is not a regular expression: {why}") from None

    def _call(self, call: Any, topic: str = "") -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return call()
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            kind, why = cause.getClass().getSimpleName(), cause.getMessage()
        if kind == "UnknownTopicOrPartitionException":
            raise ArchiveError(f"{self._bootstrap_servers} does not have topic {topic}") from None
        if kind == "TimeoutException":
            raise ArchiveError(f"{self._bootstrap_servers} did not respond in time: {why}") from None
        raise ArchiveError(f"request to {self._bootstrap_servers} failed: {kind}: {why}") from None
