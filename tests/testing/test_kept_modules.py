"""Modules of kwire that a test removes from `sys.modules`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from unittest import mock

import pytest

from kwire.testing import Broker

LAZY = "kwire.wire.messages.describe_cluster"


def test_module_that_is_imported_again_is_the_same() -> None:
    first = importlib.import_module(LAZY)
    with mock.patch.dict(sys.modules):
        del sys.modules[LAZY]
        assert importlib.import_module(LAZY) is first
        assert sys.modules[LAZY] is first
    assert isinstance(first.__loader__, SourceFileLoader)


def test_module_that_fails_to_import_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kwire

    monkeypatch.setattr(kwire, "__path__", [*kwire.__path__, str(tmp_path)])
    (tmp_path / "broken.py").write_text("raise ValueError")
    with pytest.raises(ValueError):
        importlib.import_module("kwire.broken")
    (tmp_path / "broken.py").write_text("value = 'repaired'")
    importlib.invalidate_caches()
    with mock.patch.dict(sys.modules):
        assert importlib.import_module("kwire.broken").value == "repaired"


def test_pyfakefs_removes_its_own_finder_after_it_was_active_during_the_import() -> None:
    program = """
from pyfakefs.fake_filesystem_unittest import Patcher
with Patcher():
    import kwire.testing
import colorsys
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_other_modules_are_imported_again() -> None:
    with mock.patch.dict(sys.modules):
        first = importlib.import_module("colorsys")
        del sys.modules["colorsys"]
        assert importlib.import_module("colorsys") is not first


def test_broker_recognizes_its_classes_after_a_test_has_restored_sys_modules() -> None:
    with Broker() as broker:
        with mock.patch.dict(sys.modules):
            orders = broker.create_topic("orders", partitions=2)
            broker.produce(orders, "order 1")
        with mock.patch.dict(sys.modules):
            broker.restart()
            assert broker.group("nobody").state == "Dead"
        assert len(broker.records(orders, count=1)) == 1
        broker.advance(60_000)
