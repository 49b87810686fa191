"""ApiVersions v0–4. KIP-35, KIP-511 (client software, v3), KIP-584 (features, v3)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, field, message


@message(key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest(Message):
    client_software_name: Str = field("3+", ignorable=True)
    client_software_version: Str = field("3+", ignorable=True)


@message(key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse(Message):
    """The APIs and features that the broker supports, and the finalized features of the cluster."""

    error_code: Int16 = field()
    api_keys: list[ApiVersion] = field()
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0, ignorable=True)
    finalized_features_epoch: Int64 = field("3+", tag=1, ignorable=True, default=-1)
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2, ignorable=True)
    zk_migration_ready: Bool = field("3+", tag=3, ignorable=True)


class ApiVersion(Message):
    """An API and its range of supported versions."""

    api_key: Int16 = field()
    min_version: Int16 = field()
    max_version: Int16 = field()


class SupportedFeatureKey(Message):
    """A feature and the range of levels that the broker supports."""

    name: Str = field("3+")
    min_version: Int16 = field("3+")
    max_version: Int16 = field("3+")


class FinalizedFeatureKey(Message):
    """A feature and its finalized level in the cluster."""

    name: Str = field("3+")
    max_version_level: Int16 = field("3+")
    min_version_level: Int16 = field("3+")
