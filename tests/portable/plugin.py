"""A pytest plugin that runs the tests with kwire on an imitation of macOS: `-p tests.portable.plugin`.

It must be loaded before any module of kwire. Child processes imitate macOS, too, unless they ignore
PYTHONPATH.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.portable import imitation, kqueue
from tests.portable.darwin_names import missing_names

SITE = Path(__file__).parent / "site"


def _install() -> None:
    loaded = [name for name in sys.modules if imitation.is_of_kwire(name)]
    assert not loaded, f"imported before the imitation: {loaded}"
    missing = missing_names()
    file = tempfile.NamedTemporaryFile("w", suffix=".json", prefix="kwire-tests-", delete=False)  # noqa: SIM115
    with file:
        json.dump(missing, file)
    atexit.register(_remove, file.name, os.getpid())
    os.environ["KWIRE_TESTS_MISSING_NAMES"] = file.name
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
    imitation.install(missing, kqueue)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        os.unlink(path)


_install()
