"""The classes of `kwire.testing.containers`, compared with those of the installed testcontainers.

A failure after an update of testcontainers shows what its classes have that kwire's classes lack.
"""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any

import pytest

from kwire.testing.containers import KafkaContainer, RedpandaContainer
from kwire.testing.embedded_container import EmbeddedContainer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by importing testcontainers

pytest.importorskip("testcontainers.community.kafka")

CLASSES = {"KafkaContainer": KafkaContainer, "RedpandaContainer": RedpandaContainer}
OF_THE_IMAGE = {"MIN_KRAFT_TAG", "TC_START_SCRIPT"}
"""Constants about the content of an image."""
OF_THE_INSTANCE = {"boot_command", "listeners", "security_protocol_map", "tmpfs", "volumes", "wait_for"}
"""Attributes about the start of a container."""
OTHER_DEFAULTS = {("__init__", "wait_strategy_check_string")}
"""Parameters without an effect, whose default is not that of testcontainers."""


class NoDocker:
    """A client of Docker that does not connect."""

    def __init__(self, **settings: object) -> None:
        pass


def original(name: str) -> Any:
    import testcontainers.community.kafka as module

    return getattr(module, name)


def public_names(of: object) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def parameters_of(owner: type, name: str) -> dict[str, Parameter]:
    parameters = dict(inspect.signature(getattr(owner, name)).parameters)
    del parameters["self"]
    return parameters


def constructor_parameters(owner: type) -> dict[str, Parameter]:
    """Return the parameters of a constructor, and those that its keyword arguments pass to its base class."""
    own = parameters_of(owner, "__init__")
    passed = {
        name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for name, parameter in parameters_of(owner.__mro__[1], "__init__").items()
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and not name.startswith("_")
    }
    return own | {name: passed[name] for name in passed.keys() - own.keys()}


def check_parameters(name: str, theirs: dict[str, Parameter], ours: dict[str, Parameter]) -> None:
    """Check that each call with the parameters `theirs` is a call with the parameters `ours`."""
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    for position, (parameter, expected) in enumerate(theirs.items()):
        if expected.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            assert expected.kind in {one.kind for one in ours.values()}, f"{name}: *{parameter}"
            continue
        assert parameter in ours, f"{name}: the parameter {parameter} is missing"
        found = ours[parameter]
        if expected.kind in positional:
            assert found.kind in positional, f"{name}: {parameter} cannot be passed by position"
            assert list(ours).index(parameter) == position, f"{name}: {parameter} has another position"
        if expected.default is not Parameter.empty and (name, parameter) not in OTHER_DEFAULTS:
            assert found.default == expected.default, f"{name}: {parameter} has another default"
    for parameter, found in ours.items():
        optional = found.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        assert parameter in theirs or optional or found.default is not Parameter.empty, (
            f"{name}: {parameter} has no default, and testcontainers does not have it"
        )


def test_module_has_the_classes_of_testcontainers() -> None:
    import testcontainers.community.kafka as module

    assert {*module.__all__} == CLASSES.keys() | {"kafka_config"}, (
        "kafka_config is for networks of containers"
    )


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_all_public_names(name: str) -> None:
    missing = public_names(original(name)) - public_names(CLASSES[name])
    assert missing <= OF_THE_IMAGE


@pytest.mark.parametrize("name", CLASSES)
def test_methods_take_the_arguments_of_testcontainers(name: str) -> None:
    theirs, ours = original(name), CLASSES[name]
    for method in sorted(public_names(theirs) & public_names(ours)):
        if callable(getattr(theirs, method)):
            check_parameters(method, parameters_of(theirs, method), parameters_of(ours, method))
        else:
            assert not callable(getattr(ours, method)), f"{method} is a property"
    check_parameters("__init__", constructor_parameters(theirs), parameters_of(ours, "__init__"))


@pytest.mark.parametrize("name", CLASSES)
def test_new_objects_have_the_attributes_of_testcontainers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testcontainers.core.container.DockerClient", NoDocker)
    theirs, ours = original(name)(), CLASSES[name]()
    for attribute, expected in vars(theirs).items():
        if attribute.startswith("_") or attribute in OF_THE_INSTANCE:
            continue
        found = getattr(ours, attribute)
        if attribute == "env":
            assert found.items() <= expected.items(), "the rest is about listeners and node roles"
        else:
            assert found == expected, attribute


def test_missing_parameters_and_names_are_found() -> None:
    def of(function: object) -> dict[str, Parameter]:
        return dict(inspect.signature(function).parameters)  # type: ignore[arg-type]

    def newer(topics: int, size: int = 1) -> None: ...
    def renamed(topic: int, size: int = 1) -> None: ...
    def swapped(size: int = 1, topics: int = 1) -> None: ...
    def required(topics: int, size: int, mode: int) -> None: ...
    def changed(topics: int, size: int = 2) -> None: ...

    check_parameters("same", of(newer), of(newer))
    for older in (renamed, swapped, required, changed):
        with pytest.raises(AssertionError):
            check_parameters("older", of(newer), of(older))
    assert not hasattr(EmbeddedContainer, "__getattr__"), "a type checker finds unknown names"
