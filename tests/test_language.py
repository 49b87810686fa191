"""The prose of the repository stays within the limits of `tests/language.py`, and its counters work."""

from __future__ import annotations

from pathlib import Path

from tests.architecture import repository_files
from tests.language import (
    MOST_PHRASES,
    MOST_STARTS,
    count,
    markdown_texts,
    python_texts,
    report,
)


def test_prose_is_within_the_limits() -> None:
    counted = count(path for path in repository_files() if not path.is_symlink())
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
