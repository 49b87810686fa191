"""Installs the imitation of macOS in a child process of a test, before the process imports kwire."""

import importlib.util
import json
import os
from types import ModuleType

VARIABLE = "KWIRE_TESTS_MISSING_NAMES"
"""The file with the names that macOS lacks. Without it, the process does not imitate macOS."""
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def load(name: str) -> ModuleType:
    """Execute a module of the folder, even if the folder is not on the path."""
    spec = importlib.util.spec_from_file_location(f"kwire_tests_{name}", os.path.join(FOLDER, f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if VARIABLE in os.environ:
    with open(os.environ[VARIABLE], encoding="utf-8") as file:
        load("imitation").install(json.load(file), load("kqueue"))
