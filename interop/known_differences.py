"""Intended differences from Apache Kafka: scenario, path of the value in the scenario's result, and reason.

Scenario and path may have wildcards, as in a shell.
"""

from __future__ import annotations

NOT_IMPLEMENTED = "kwire does not implement this API yet, and advertises only implemented APIs"
FEATURE = "kwire advertises a feature once it implements the feature completely"
PRODUCER_SNAPSHOT = (
    "kwire keeps the producer snapshot at the log start, so that a second crash changes nothing"
)
CONTROLLED_SHUTDOWN = "a broker registers again at once after a controlled shutdown: docs/decisions/0016"
SHUTTING_DOWN = (
    "a broker in controlled shutdown is not unfenced in the same registration: docs/decisions/0016"
)
SNAPSHOT_ERROR = (
    "Apache Kafka's FetchSnapshot error response lacks a field and cannot be encoded: docs/decisions/0007"
)
NO_BACKTRACKING = "client match patterns are RE2 expressions, which do not backtrack: docs/decisions/0007"
ALL_PARTITIONS = "CreatePartitions adds all requested partitions or returns an error: docs/decisions/0007"
HIGH_WATERMARK = (
    "a Fetch response has the high watermark that the fetch itself has raised: docs/decisions/0017"
)
ALERTS = "OpenSSL sends other alerts than Java if it does not accept a client certificate: docs/security.md"
CHAIN = "OpenSSL completes the chain of a key store with certificates of the trust store: docs/security.md"
RIGHTS_FIRST = "a broker checks rights before the values of its configuration: docs/decisions/0007"
INVALID_ACL = "CreateAcls rejects only the invalid ACL of a request: docs/decisions/0007"

KNOWN: list[tuple[str, str, str]] = [
    ("raw_frames.api_versions", "*/ApiKeys/*", NOT_IMPLEMENTED),
    ("raw_frames.api_versions", "*/SupportedFeatures/*", FEATURE),
    ("raw_frames.api_versions", "*/FinalizedFeatures/*", FEATURE),
    (
        "raw_produce.invalid_batches",
        "/null",
        "Apache Kafka never responds to a Produce request whose records are null",
    ),
    (
        "raw_produce.connection_survives_errors",
        "/bomb/*",
        "kwire rejects a batch of more than 100 MiB before it reads the records: docs/decisions/0002",
    ),
    (
        "raw_transactions_log_start.killed",
        "/restarted-retained-False/ended/committed/*/4/0/1",
        PRODUCER_SNAPSHOT,
    ),
    ("raw_topics.growth_limits", "/by one more, v*", ALL_PARTITIONS),
    ("raw_topics.growth_limits", "/assigned/*", ALL_PARTITIONS),
    ("raw_config_values.subscriptions", "/match=client_id=x++/*", NO_BACKTRACKING),
    ("raw_broker_registration.heartbeats", "/registered at once/*", CONTROLLED_SHUTDOWN),
    ("raw_broker_registration.heartbeats", "/shut down, then heartbeat/IsFenced", SHUTTING_DOWN),
    ("raw_metadata_fetch.snapshots", "/refused: */*", SNAPSHOT_ERROR),
    ("raw_follower_fetch.follower_fetches", "/offset 4/*/HighWatermark", HIGH_WATERMARK),
    ("raw_follower_fetch.follower_fetches", "/offset 4/*/LastStableOffset", HIGH_WATERMARK),
    ("raw_follower_fetch.follower_fetches", "/at the end/*/HighWatermark", HIGH_WATERMARK),
    ("raw_follower_fetch.follower_fetches", "/at the end/*/LastStableOffset", HIGH_WATERMARK),
    ("raw_follower_fetch.delayed_operations", "/follower has a part/*/HighWatermark", HIGH_WATERMARK),
    ("raw_follower_fetch.delayed_operations", "/follower has a part/*/LastStableOffset", HIGH_WATERMARK),
    ("languages.*", "/MUTUAL_*/refused/* certificate/alert", ALERTS),
    ("languages.kafkajs", "/MUTUAL_*/refused/untrusted broker/messages/*", CHAIN),
    ("authorizer.*AlterConfigs", "*/broker invalid v*/Responses/[45]/*", RIGHTS_FIRST),
    ("authorizer.*AlterConfigs", "*/broker invalid v?, audit log", RIGHTS_FIRST),
    ("authorizer.CreateAcls", "*/*er match v3/Results/*", INVALID_ACL),
    ("authorizer.CreateAcls", "*/*er any operation v3/Results/*", INVALID_ACL),
    ("authorizer.CreateAcls", "*/*er any permission v3/Results/*", INVALID_ACL),
]
