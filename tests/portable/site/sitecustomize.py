"""Installs the imitation of macOS in a child process of a test, before the process imports kwire."""

import json
import os
import sys

VARIABLE = "KWIRE_TESTS_MISSING_NAMES"
"""The file with the names that macOS lacks. Without it, the process does not imitate macOS."""
ROOT = os.path.abspath(__file__).rsplit(os.sep, 4)[0]


def _install() -> None:
    sys.path.insert(0, ROOT)
    from tests.portable import imitation, kqueue

    # The process may have a package `tests` of its own.
    sys.path.remove(ROOT)
    for name in ("tests", "tests.portable"):
        del sys.modules[name]
    with open(os.environ[VARIABLE], encoding="utf-8") as file:
        imitation.install(json.load(file), kqueue)


if VARIABLE in os.environ:
    _install()
