"""Reading of compose files and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.compose import read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: {a: {image: kwire, port: ['1:1']}}", "a.yaml: a has port"),
        ("service: {}", "a.yaml has service"),
        ("services: {a: {image: kwire, volumes: ['data:/d']}}", "volume data, which volumes lacks"),
        ("services: {a: {image: kwire, environment: {KAFKA_A: true}}}", "put it into quotes"),
        ("services: {a: {image: kwire, stop_grace_period: '60'}}", "no duration"),
        ("services: {a: {image: kwire, depends_on: [b]}}", "depends on"),
        ("services: {a: {image: kwire, depends_on: {a: {condition: healthy}}}}", "a condition that is none"),
    ],
)
def test_invalid_compose_file_raises(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_service_may_extend_another_and_have_a_list_environment(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("services: {k: {image: kwire, ports: ['29092:9092'], hostname: h}}")
    path = tmp_path / "a.yaml"
    path.write_text(
        "services: {k: {extends: {file: base.yaml, service: k}, hostname: i, environment: [KAFKA_A=b=c]}}"
    )
    (service,) = read(path)
    assert (service.image, service.hostname, service.published[0]) == ("kwire", "i", (29092, 9092))
    assert service.environment == {"KAFKA_A": "b=c"}
