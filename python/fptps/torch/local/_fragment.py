"""The part of a model that a round exchanges: with most algorithms the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ._algorithm import Center
from ._exchange import Exchange
from ._vector import Vector


class Fragment:
    """Some of the model's parameters, the same part of the global model, and the exchange of their updates."""

    def __init__(self, vector: Vector, center: Center, exchange: Exchange) -> None:
        self.center = center
        self.exchange = exchange
        self._vector = vector
        self._begin = center.w.clone()  # the parameters before the steps of the next update

    def update(self) -> torch.Tensor:
        """The parameters before the steps minus the parameters now, (size,)."""
        return self._begin - self._vector.read()

    def restart(self, x: torch.Tensor) -> None:
        """Sets the parameters to x, (size,): the next update is measured from there."""
        self._vector.write(x)
        self._begin = self._vector.read()  # not x: parameters of 16 bits hold it rounded

    def take_over(self, mixing: float) -> None:
        """x <- mixing * x + (1 - mixing) * w. The next update includes the part of x that is kept."""
        x = self._vector.read() if mixing else None
        self.restart(self.center.w)
        if x is not None:
            self._vector.write(torch.lerp(self.center.w, x, mixing))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the parameters, which the model's state has."""
        return {
            "begin": self._begin.clone(),
            "center": self.center.state_dict(),
            "exchange": self.exchange.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state of state_dict(), and sends an update that was in flight again."""
        self._begin = state["begin"].clone()
        self.center.load_state_dict(state["center"])
        self.exchange.load_state_dict(state["exchange"])
