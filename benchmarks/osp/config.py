"""The settings of an experiment: config.json, read by the PS and sent to every worker."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


class SetupError(ValueError):
    """A mistake in how the experiment was started, in a sentence for the user."""


CHOICES = {
    "lr_schedule": ("constant", "linear", "cosine"),
    "gamma_schedule": ("constant", "linear", "cosine"),
    "on_lost_worker": ("end", "continue"),
}


@dataclass(frozen=True)
class Config:
    initial_lr: float
    gamma: float  # of LOSP and DQLOSP
    quant_range: float | None  # of DQLOSP, of the sum of a round's gradients; null: each block's own
    all_iterations: int  # of all workers together
    batch_size: int  # of each worker
    K: int  # local iterations in a round; with OSP, LOSP and DQLOSP the maximum
    model_type: str
    dataset_type: str
    output_dir: str
    lr_schedule: str = "constant"
    gamma_schedule: str = "constant"
    quant_bits: int = 16  # of DQLOSP, 2 to 16
    error_feedback: bool = False  # of DQLOSP
    on_lost_worker: str = "end"
    test_samples: int = 0  # on which each round's model is evaluated, the same each time; 0: all
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("all_iterations", "batch_size", "K"):
            if getattr(self, name) < 1:
                raise SetupError(f"{name} is {getattr(self, name)}, but at least 1 is needed")
        for name in ("initial_lr", "gamma", "quant_range"):
            value = getattr(self, name)
            if not (name == "quant_range" and value is None) and not 0 < value < float("inf"):
                raise SetupError(f"{name} is {value}, but a number above 0 is needed")
        if not 2 <= self.quant_bits <= 16:
            raise SetupError(f"quant_bits is {self.quant_bits}, but 2 to 16 are possible")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise SetupError(f"{name} is {getattr(self, name)!r}, but there are: {', '.join(choices)}")


def read(path: Path) -> Config:
    """Reads config.json; a SetupError names the file and the setting."""
    try:
        return parse(path.read_text())
    except (TypeError, ValueError) as error:
        raise SetupError(f"{path}: {error}") from error


def parse(text: str) -> Config:
    values: dict[str, Any] = json.loads(text)
    unknown = values.keys() - {field.name for field in fields(Config)}
    if unknown:
        raise SetupError(f"unknown settings: {', '.join(sorted(unknown))}")
    return Config(**values)


def to_json(config: Config) -> str:
    return json.dumps(asdict(config), indent=4)
