"""Wheels built from installed packages, so that pip in an image can install without an index.

The hashes in the lock file are replaced by those of these wheels. The versions must be the pinned ones.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

MADE_BY_PIP = {"INSTALLER", "REQUESTED", "direct_url.json"}


def pinned(lock: str) -> list[Requirement]:
    """Return the requirements that a lock file pins for this Python."""
    requirements = [Requirement(line) for line in re.findall(r"(?m)^(\w[^\\\n]*)", lock)]
    return [one for one in requirements if one.marker is None or one.marker.evaluate()]


def installed(requirement: Requirement) -> Distribution:
    """Return the installed package of a requirement. Raise LookupError with the fix."""
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError:
        raise LookupError(f"{requirement.name} is not installed: run make setup") from None
    if not requirement.specifier.contains(found.version):
        raise LookupError(f"{requirement} is wanted, and {found.version} is installed: run make setup")
    return found


def with_dependencies(requirement: Requirement) -> Iterator[Distribution]:
    """Yield a package and its dependencies."""
    found = installed(requirement)
    yield found
    for text in found.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            yield from with_dependencies(needed)


def make_wheel(package: Distribution, directory: Path) -> Path:
    """Put the files of an installed package into a wheel. Scripts come from its entry points."""
    result = package.read_text("WHEEL") or ""
    tags = [tag.strip().split("-") for tag in re.findall(r"(?m)^Tag: (.*)$", result)]
    assert tags, f"{package.name} says no tag"
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    name = re.sub(r"[-_.]+", "_", package.name)
    path = directory / f"{name}-{package.version}-{tag}.whl"
    with ZipFile(path, "w") as wheel:
        for file in package.files or ():
            if ".." in file.parts or file.suffix == ".pyc" or file.name in MADE_BY_PIP:
                continue
            wheel.write(str(file.locate()), str(file))
    return path


def rewrite_lock_file(lock: str, directory: Path) -> str:
    """Make wheels in a directory and return the lock file with their hashes."""
    lines = []
    for requirement in pinned(lock):
        wheel = make_wheel(installed(requirement), directory)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{requirement} --hash=sha256:{digest}\n")
    return "".join(lines)


def pip_of_this_python(site_packages: Path, binaries: Path) -> None:
    """Make the pip of this Python available to another one."""
    for file in distribution("pip").files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            target = site_packages / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(str(file.locate())).read_bytes())
    script = binaries / "pip"
    script.write_text(
        "#!/usr/local/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)


SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
