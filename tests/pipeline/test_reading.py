"""An archive as Spark is told to read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.archive.reading import unglobbed


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/srv/archive/data/topic=a.b-c_d", "/srv/archive/data/topic=a.b-c_d"),
        ("/srv/a [x] {b,c} *?", r"/srv/a \[x\] \{b,c\} \*\?"),
        (r"/srv/a\b", r"/srv/a\\b"),
    ],
)
def test_no_character_of_a_path_is_a_pattern(path: str, told: str) -> None:
    assert unglobbed(Path(path)) == told
