"""String hashes, compared with values from a JVM."""

from __future__ import annotations

import pytest

from kwire.wire.java_strings import string_hash


def test_string_hashes_match_java() -> None:
    assert string_hash("") == 0
    assert string_hash("hello") == 99162322
    assert string_hash("Hello World") == 2**32 - 862545276
    assert string_hash("\U0001f600") == 1772899


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("y" * 257, -1353158535),
        ("kwire-\u00e9\U0001f600" * 150, 1014228384),
        ("ab" * 1024, 838403072),
        ("x" * 32767, -2080510088),
    ],
)
def test_long_string_hashes_match_java(text: str, printed: int) -> None:
    assert string_hash(text) == printed % 2**32
