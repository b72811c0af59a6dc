"""Run a callback as soon as a module was imported, or at once if it is there already."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Callback = Callable[[ModuleType], None]


class _CallingLoader(Loader):
    def __init__(self, genuine: Loader, callbacks: Sequence[Callback]) -> None:
        self._genuine = genuine
        self._callbacks = callbacks

    def __getattr__(self, name: str) -> object:
        return getattr(self._genuine, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._genuine.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Whoever looks at the loader later (inspect, pickle, importlib.resources) finds the genuine one.
        module.__loader__ = self._genuine
        if module.__spec__ is not None:
            module.__spec__.loader = self._genuine
        self._genuine.exec_module(module)
        for callback in self._callbacks:
            callback(module)


class _ImportWatch(MetaPathFinder):
    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        self._searching: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  the signature is Python's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in self.callbacks or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self.callbacks[fullname])
        return spec


_watch = _ImportWatch()


def when_imported(name: str, callback: Callback) -> None:
    """Call ``callback`` with module ``name``: now if it is imported, else right after its import.

    A callback may be registered again; it is then called once all the same.
    """
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
    callbacks = _watch.callbacks.setdefault(name, [])
    if callback in callbacks:
        return
    callbacks.append(callback)
    if name in sys.modules:
        callback(sys.modules[name])


def is_importable(name: str) -> bool:
    """Tell whether there is a module of this name, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # imported, but without a spec: a test double
        return True
