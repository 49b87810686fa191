"""UpdateFeatures v0–2. KIP-584, KIP-778 (upgrade types, validation only, v1), KIP-1022 (no results, v2)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest(Message):
    timeout_ms: Int32 = field(default=60000)
    feature_updates: list[FeatureUpdateKey] = field()
    validate_only: Bool = field("1+")


class FeatureUpdateKey(Message):
    """A feature and its new level."""

    feature: Str = field()
    max_version_level: Int16 = field()
    allow_downgrade: Bool = field("0")
    upgrade_type: Int8 = field("1+", default=1)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    results: list[UpdatableFeatureResult] = field("0-1", ignorable=True)


class UpdatableFeatureResult(Message):
    """Result for one feature."""

    feature: Str = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
