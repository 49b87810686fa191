"""A parser for our Dockerfile and its build context."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

INSTRUCTIONS = {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD"}


class Step(NamedTuple):
    """One instruction with its --options and the rest of its text."""

    instruction: str
    options: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """Return the rest as a list, from JSON or from words."""
        if self.text.startswith("["):
            words: list[str] = json.loads(self.text)
            return words
        return self.text.split()


def read_steps(text: str) -> list[Step]:
    """Return the steps of a Dockerfile. Raise ValueError for an unknown instruction."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    steps = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction not in INSTRUCTIONS:
            raise ValueError(f"{instruction} is no instruction that is known here: {line}")
        options = {}
        rest = rest.strip()
        while rest.startswith("--"):
            option, _, rest = rest.partition(" ")
            name, _, value = option.removeprefix("--").partition("=")
            options[name] = value
            rest = rest.strip()
        steps.append(Step(instruction, options, rest))
    return steps


class Context:
    """The build context: the files that .dockerignore does not exclude."""

    def __init__(self, top: Path, ignored: str) -> None:
        self.top = top
        self._rules = [line for line in ignored.splitlines() if line and not line.startswith("#")]

    def find(self, source: str) -> Path:
        """Return a file or directory by its name in COPY. Raise FileNotFoundError."""
        path = self.top / source
        if not path.exists() or self.excludes(source):
            raise FileNotFoundError(f"COPY {source}: the context has no such file")
        return path

    def excludes(self, name: str) -> bool:
        """Return whether .dockerignore excludes a name; the last matching rule wins."""
        above = [name, *(str(parent) for parent in Path(name).parents if str(parent) != ".")]
        is_out = False
        for rule in self._rules:
            pattern = rule.removeprefix("!")
            anywhere = pattern.removeprefix("**/")
            if any(
                fnmatchcase(one, pattern) or (anywhere != pattern and fnmatchcase(Path(one).name, anywhere))
                for one in above
            ):
                is_out = not rule.startswith("!")
        return is_out
