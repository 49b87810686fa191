"""The import of kwire's modules in the process of a test.

- A module is imported once, even if a test removes it from `sys.modules`. `unittest.mock.patch.dict` and
  pyfakefs remove all modules that were imported in the meantime, and a broker imports modules when it needs
  them. A second import would create their classes again, and the broker would not recognize its own objects.
- pytest does not rewrite the assertions of a module. It would do that for all modules of a distribution that
  has a plugin. For kwire's modules, that takes a second unless the result is cached.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any


class KeptModules:
    """A finder that imports each module below kwire once."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def install(self) -> None:
        """Precede the finders of Python's files and of pytest, from now on. Can be called several times."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        # Not before all: pyfakefs puts its own finder first while it fakes files, and then removes the first.
        preceded = (
            index
            for index, finder in enumerate(sys.meta_path)
            if finder is PathFinder or type(finder).__module__.startswith("_pytest.")
        )
        sys.meta_path.insert(next(preceded, 0), self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module below kwire, or None for other modules."""
        if not fullname.startswith("kwire."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _KeepingLoader(fullname, spec.loader.path, self._modules)
        return spec


class _KeepingLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, modules: dict[str, ModuleType]) -> None:
        super().__init__(fullname, path)
        self._modules = modules

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._modules.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if self._modules.get(module.__name__) is not module:
            super().exec_module(module)
            self._modules[module.__name__] = module


KEPT_MODULES = KeptModules()
"""The finder of this process."""
