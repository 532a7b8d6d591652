"""The settings of an experiment: config.json, read by the PS alone and sent to every worker."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


class SetupError(ValueError):
    """The experiment was started wrongly: the text is all that the user needs."""


@dataclass(frozen=True)
class Config:
    initial_lr: float
    gamma: float  # of LOSP and DQLOSP
    quant_range: float  # of DQLOSP
    all_iterations: int  # of all workers together
    batch_size: int  # of each worker
    K: int  # local iterations in a round
    model_type: str
    dataset_type: str
    output_dir: str
    lr_schedule: str = "constant"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("all_iterations", "batch_size", "K"):
            if getattr(self, name) < 1:
                raise SetupError(f"{name} is {getattr(self, name)}, but at least 1 is needed")


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
