"""Which parameters a module's forward pass uses: recorded in the first iteration, then acted on before each forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn


class Forward:
    """Calls finish(indices) before a module uses the parameters of these indices.

    It hooks into all modules of the process at once, and puts nothing into them: a model can be copied and pickled.
    While it records it notes the modules that are called. A module then uses its own parameters, and those of the
    modules within it that were not called: nn.MultiheadAttention, say, reads its out_proj's without a call. A parameter
    that no called module uses in this sense is not covered.

    A module in evaluation mode uses all parameters: some take other ways there than in training.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], finish: Callable[[Iterable[int]], None]) -> None:
        self._index = {id(p): index for index, p in enumerate(parameters)}
        self._finish = finish
        self._called: dict[nn.Module, None] | None = {}
        self._users: weakref.WeakKeyDictionary[nn.Module, list[int]] = weakref.WeakKeyDictionary()
        method = weakref.WeakMethod(self._before)

        def before(module: nn.Module, arguments: Any) -> None:
            if not torch.compiler.is_compiling():  # a compiled module reads its parameters when it is entered
                call = method()
                if call is not None:
                    call(module)

        self.close = weakref.finalize(self, nn.modules.module.register_module_forward_pre_hook(before).remove)

    @property
    def recording(self) -> bool:
        """Whether the first iteration is still under way."""
        return self._called is not None

    def order(self) -> list[int]:
        """The indices of the parameters that were used so far, the first one first."""
        called = self._called or {}
        return list(dict.fromkeys(index for module in called for index in self._uses(module, called)))

    def end_recording(self) -> set[int]:
        """Begins to call finish(). Returns the indices of the parameters that are not covered."""
        called = self._called or {}
        for module in called:
            self._users[module] = self._uses(module, called)
        self._called = None
        return set(self._index.values()).difference(*self._users.values())

    def owners(self) -> list[nn.Module]:
        """The modules whose forward pass waits."""
        return list(self._users)

    def _uses(self, module: nn.Module, called: dict[nn.Module, None]) -> list[int]:
        found = [self._index[id(p)] for p in module.parameters(recurse=False) if id(p) in self._index]
        for child in module.children():
            if child not in called:
                found += self._uses(child, called)
        return found

    def _before(self, module: nn.Module) -> None:
        if self._called is not None:
            if module not in self._called and any(id(p) in self._index for p in module.parameters()):
                self._called[module] = None
            return
        used = self._users.get(module)
        if used is not None:
            self._finish(used if module.training else self._index.values())
