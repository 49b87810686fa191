"""The counters of `tests/language.py`, and the packages whose prose they hold to its limits."""

from __future__ import annotations

from pathlib import Path

from tests.architecture import ROOT, repository_files
from tests.language import (
    MOST_PHRASES,
    MOST_STARTS,
    count,
    markdown_texts,
    python_texts,
    report,
)

HELD = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "bench",
    "docker",
    "docs/README.md",
    "docs/cluster.md",
    "docs/command-line.md",
    "docs/configurations.md",
    "docs/console.md",
    "docs/decisions",
    "docs/inside.md",
    "docs/moving.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/pipeline.md",
    "docs/security.md",
    "docs/simulation.md",
    "docs/site",
    "docs/start.md",
    "docs/supported.md",
    "docs/swap.md",
    "docs/testing.md",
    "interop",
    "kwire/__main__.py",
    "kwire/broker/__init__.py",
    "kwire/broker/api",
    "kwire/broker/config",
    "kwire/broker/controller",
    "kwire/broker/metadata",
    "kwire/broker/net",
    "kwire/broker/node",
    "kwire/broker/observe",
    "kwire/broker/raft",
    "kwire/broker/replication",
    "kwire/broker/security",
    "kwire/broker/storage",
    "kwire/cli",
    "kwire/client",
    "kwire/console",
    "kwire/coordinator",
    "kwire/host",
    "kwire/http",
    "kwire/pipeline",
    "kwire/testing",
    "kwire/wire",
    "simulation",
    "tests/broker/api",
    "tests/broker/config",
    "tests/broker/controller",
    "tests/broker/metadata",
    "tests/broker/net",
    "tests/broker/node",
    "tests/broker/observe",
    "tests/broker/raft",
    "tests/broker/replication",
    "tests/broker/security",
    "tests/broker/storage",
    "tests/cli",
    "tests/client",
    "tests/console",
    "tests/coordinator",
    "tests/docker",
    "tests/durability",
    "tests/host",
    "tests/http",
    "tests/interop",
    "tests/node_harness.py",
    "tests/simulation",
    "tests/testing",
    "tests/wire",
]
"""Files and folders whose prose is within the limits. The list may only grow."""


def test_prose_is_within_the_limits() -> None:
    paths = [
        path
        for path in repository_files()
        if not path.is_symlink() and any(path.is_relative_to(ROOT / name) for name in HELD)
    ]
    counted = count(paths)
    assert counted.starts_share < MOST_STARTS, report(counted)
    assert counted.phrases_per_1000_words < MOST_PHRASES, report(counted)


def test_docstrings_comments_and_long_strings_are_prose() -> None:
    source = '''
"""What a module is."""
LIMIT = 3
"""Of an attribute."""
def f():  # nobody calls it
    log("the broker is asked for 3")
    return {"key": "value"}
'''
    texts = {text.text: text.is_docstring for text in python_texts(source)}
    assert texts == {
        "What a module is.": True,
        "Of an attribute.": True,
        "nobody calls it": False,
        "the broker is asked for 3": False,
    }


def test_code_in_markdown_is_not_prose() -> None:
    page = "A line.\n```\ncode\n```\n    more code\n[A link](tell/nobody.md)\n"
    assert [(text.line, text.text) for text in markdown_texts(page)] == [(1, "A line."), (6, "[A link]")]


def test_a_question_may_start_with_what(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('"""What is it? What it is. The broker tells nobody."""\n')
    counted = count([tmp_path / "module.py"], root=tmp_path)
    assert [(hit.line, hit.found) for hit in counted.starts] == [(1, "What")]
    assert [hit.found for hit in counted.phrases] == ["tells", "nobody"]
    assert (counted.sentences, counted.words) == (3, 10)
