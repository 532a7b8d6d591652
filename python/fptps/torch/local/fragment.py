"""The part of a model that is exchanged in a round: of most algorithms all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .algorithm import Center
from .exchange import Exchange
from .vector import Vector


class Fragment:
    """Some of the model's parameters, their place in the global model, and the exchange of their updates."""

    def __init__(self, vector: Vector, center: Center, exchange: Exchange) -> None:
        self.center = center
        self.exchange = exchange
        self._vector = vector
        self._begin = center.w.clone()  # where the steps since the last update began

    def update(self) -> torch.Tensor:
        """How far the steps have moved the parameters, (size,)."""
        return self._begin - self._vector.read()

    def go_on_from(self, x: torch.Tensor) -> None:
        """Sets the parameters: further steps are counted from there."""
        self._vector.write(x)
        self._begin = self._vector.read()  # what the model holds: less exact than x where that is 16 bits wide

    def take_over(self, mixing: float) -> None:
        """x <- mixing * x + (1 - mixing) * w. What is kept of x, as it is not in w, is in the next update."""
        x = self._vector.read() if mixing else None
        self.go_on_from(self.center.w)
        if x is not None:
            self._vector.write(torch.lerp(self.center.w, x, mixing))

    def state_dict(self) -> dict[str, Any]:
        """All but the parameters, which are the model's."""
        return {
            "begin": self._begin.clone(),
            "center": self.center.state_dict(),
            "exchange": self.exchange.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to where state_dict() was called: what was under way then is sent again."""
        self._begin = state["begin"].clone()
        self.center.load_state_dict(state["center"])
        self.exchange.load_state_dict(state["exchange"])
