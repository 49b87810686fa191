"""Differences from Apache Kafka that are meant: (scenario, path, reason), the first two as shell patterns.

The list is short and each entry says why. An entry that no longer matches anything fails the run of
the whole suite, so the list can only be true.
"""

from __future__ import annotations

NOT_SERVED = "this API is not served yet, and what is not served is not advertised"
FEATURES = "a feature is advertised when all that it promises is there"
SNAPSHOT_KEPT = "the snapshot of producers at the log start is kept, so that a second crash changes nothing"
UNPARSED = "records are delimited, not parsed, when they are produced: docs/decisions/0002"
LET_GO = "who was let go need not wait for the end of a session: docs/decisions/0016"
ENDED = "a life that was about to end does not begin again: docs/decisions/0016"
SNAPSHOT_REFUSED = (
    "Apache Kafka's refusal of a piece of a snapshot lacks a field, and fails: docs/decisions/0007"
)
NO_BACKTRACKING = "patterns of clients are RE2's, which does not backtrack: docs/decisions/0007"
NOT_HALF_GROWN = "a topic grows by all that is asked for, or says why not: docs/decisions/0007"
SOONER = "a fetch is told the high watermark that it has itself raised: docs/decisions/0017"

KNOWN: list[tuple[str, str, str]] = [
    ("raw_frames.api_versions", "*/ApiKeys/*", NOT_SERVED),
    ("raw_frames.api_versions", "*/SupportedFeatures/*", FEATURES),
    ("raw_frames.api_versions", "*/FinalizedFeatures/*", FEATURES),
    ("raw_produce.invalid_batches", "/record with */*", UNPARSED),
    ("raw_produce.invalid_batches", "/log", UNPARSED),
    (
        "raw_produce.invalid_batches",
        "/null",
        "Apache Kafka never answers a Produce request whose records are null",
    ),
    (
        "raw_produce.connection_survives_errors",
        "/bomb/*",
        "a batch of more than 100 MiB is refused before its records are looked at: docs/decisions/0002",
    ),
    (
        "raw_transactions_log_start.killed",
        "/restarted-retained-False/ended/committed/*/4/0/1",
        SNAPSHOT_KEPT,
    ),
    ("raw_topics.growth_limits", "/by one more, v*", NOT_HALF_GROWN),
    ("raw_topics.growth_limits", "/assigned/*", NOT_HALF_GROWN),
    ("raw_config_values.subscriptions", "/match=client_id=x++/*", NO_BACKTRACKING),
    ("raw_broker_registration.heartbeats", "/registered at once/*", LET_GO),
    ("raw_broker_registration.heartbeats", "/shut down, then heartbeat/IsFenced", ENDED),
    ("raw_metadata_fetch.snapshots", "/refused: */*", SNAPSHOT_REFUSED),
    ("raw_follower_fetch.follower_fetches", "/offset 4/*/HighWatermark", SOONER),
    ("raw_follower_fetch.follower_fetches", "/offset 4/*/LastStableOffset", SOONER),
    ("raw_follower_fetch.follower_fetches", "/at the end/*/HighWatermark", SOONER),
    ("raw_follower_fetch.follower_fetches", "/at the end/*/LastStableOffset", SOONER),
    ("raw_follower_fetch.delayed_operations", "/follower has a part/*/HighWatermark", SOONER),
    ("raw_follower_fetch.delayed_operations", "/follower has a part/*/LastStableOffset", SOONER),
]
