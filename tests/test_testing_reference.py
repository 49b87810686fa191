"""The generated reference page of `kwire.testing`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import kwire.testing
from tests.testing.test_names import NAMES, public_names

SITE = Path(__file__).resolve().parent.parent / "docs" / "site"


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SITE)
    return importlib.import_module("testing_reference")


def test_page_has_every_public_name(reference: Any) -> None:
    page = reference.reference_page(kwire.testing)
    for name in kwire.testing.__all__:
        assert len(re.findall(rf"^###? {name}(?:\(\))?$", page, re.MULTILINE)) >= 1, name
    assert "\nreturn_error(\n    api: ApiName,\n    error: ErrorName | int,\n" in page
    assert "### Exchange.version\n\nThe version of the API.\n" in page
    assert "Initialize self" not in page


@pytest.mark.parametrize("name", NAMES)
def test_page_has_exactly_the_public_members(reference: Any, name: str) -> None:
    inherited = public_names("Kafka") if name in ("Broker", "Cluster", "Proxy") else set()
    expected = {line.partition("(")[0] for line in public_names(name)}
    shown = set(reference.public_members(name, getattr(kwire.testing, name)))
    assert shown <= expected
    assert expected - shown <= {line.partition("(")[0] for line in inherited}
