"""A Dockerfile, as far as ours goes: its steps in their order, and what its context leaves out."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

INSTRUCTIONS = {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD"}


class Step(NamedTuple):
    """One instruction, its --options, and the rest of its text."""

    instruction: str
    options: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """The rest as a list: in JSON, or words between blanks."""
        if self.text.startswith("["):
            words: list[str] = json.loads(self.text)
            return words
        return self.text.split()


def read_steps(text: str) -> list[Step]:
    """The steps of a Dockerfile. ValueError for an instruction that is not known here."""
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
    """The files that a build may copy: what the .dockerignore beside the Dockerfile leaves."""

    def __init__(self, top: Path, ignored: str) -> None:
        self.top = top
        self._rules = [line for line in ignored.splitlines() if line and not line.startswith("#")]

    def find(self, source: str) -> Path:
        """A file or directory by its name in COPY. FileNotFoundError."""
        path = self.top / source
        if not path.exists() or self.excludes(source):
            raise FileNotFoundError(f"COPY {source}: the context has no such file")
        return path

    def excludes(self, name: str) -> bool:
        """The last rule that matches the name, or a directory above it, decides."""
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
