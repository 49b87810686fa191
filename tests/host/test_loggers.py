"""Loggers with node names, and the known logger names."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from unittest import mock

import pytest

import kwire.broker
from kwire.host.loggers import AUDIT_LOGGER, LOGGER_NAMES, NodeLogger, known_loggers


def test_log_record_names_its_node(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kwire"):
        NodeLogger("kwire.node", "100% of 1").info("%d logs", 7)
        NodeLogger("kwire.node", "").info("%d logs", 8)
    assert caplog.messages == ["[100% of 1] 7 logs", "8 logs"]
    assert [vars(record)["node"] for record in caplog.records] == ["100% of 1", ""]


def test_log_record_names_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    NodeLogger("kwire.node", "").warning("first")
    NodeLogger("kwire.node", "").exception("second")
    assert {record.pathname for record in caplog.records} == {__file__}


def test_log_line_that_cannot_be_created_is_lost_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with mock.patch("logging.LogRecord.__init__", side_effect=StopIteration):
        NodeLogger("kwire.node", "").warning("first")
    NodeLogger("kwire.node", "").warning("second")
    assert caplog.messages == ["second"]


def test_all_logger_names_are_known_before_their_first_use() -> None:
    sources = Path(kwire.broker.__path__[0]).parent.rglob("*.py")
    used = {
        name
        for path in sources
        for name in re.findall(r'(?:\blogger|NodeLogger)\("(kwire\.\w+)"', path.read_text("utf-8"))
    }
    assert used | {AUDIT_LOGGER} == set(LOGGER_NAMES)
    assert known_loggers().keys() >= used
