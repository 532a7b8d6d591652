"""Common to the runners of the peers: options, results, and merging the results of all workers.

It runs on Python 3.8 too, and without packages: it is imported in the environments of the peers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "peers"
FLOAT_BYTES = 4


class PeerError(Exception):
    """A peer cannot be measured; the text gives the reason and the remedy."""


@dataclass(frozen=True)
class Options:
    """The options of all runners."""

    workers: int
    servers: int
    size: int
    """Bytes of a tensor."""
    tensors: int
    """Number of tensors in flight at once."""
    seconds: float
    """Approximate duration of the timed part."""

    def arguments(self) -> list[str]:
        """The options as a command line."""
        return [part for name, value in asdict(self).items() for part in (f"--{name}", str(value))]

    @property
    def patience_s(self) -> float:
        """Timeout of a run in seconds; calibration takes less than the timed part."""
        return 60 + 3 * self.seconds


@dataclass(frozen=True)
class Part:
    """The measurements of one worker."""

    iterations: int
    elapsed_s: float
    cpu_s: float
    latencies_us: list[float]


@dataclass(frozen=True)
class Result:
    """What a runner prints."""

    goodput_mb_s_per_worker: float
    """10^6 bytes pushed and pulled by each worker in a second."""
    cpu_s_per_gb: float | None
    """CPU seconds of all processes per 10^9 of these bytes, summed over the workers."""
    p50_us: float | None
    """Of the times from the call for a tensor to its end."""
    p99_us: float | None
    iterations: int | None


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of all runners."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--workers", type=positive, default=2)
    made.add_argument("--servers", type=positive, default=1, help="ignored by a peer without servers")
    made.add_argument("--size", type=tensor_size, default=4 << 20, help="bytes of a tensor, a multiple of 4")
    made.add_argument("--tensors", type=positive, default=16, help="number of tensors in flight at once")
    made.add_argument("--seconds", type=float, default=3.0, help="approximate duration of the timed part")
    return made


def add_worker_options(made: argparse.ArgumentParser) -> None:
    """The hidden options that a runner passes to its workers' processes."""
    made.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    made.add_argument("--folder", help=argparse.SUPPRESS)


def positive(text: str) -> int:
    """Parses a count of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def tensor_size(text: str) -> int:
    """Parses the size of a float32 tensor in bytes."""
    value = positive(text)
    if value % FLOAT_BYTES:
        raise argparse.ArgumentTypeError(f"{value} is not a multiple of {FLOAT_BYTES}")
    return value


def options_of(parsed: argparse.Namespace) -> Options:
    """The common options out of a runner's arguments."""
    return Options(parsed.workers, parsed.servers, parsed.size, parsed.tensors, parsed.seconds)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that a fraction `share` of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def merged(options: Options, parts: Sequence[Part]) -> Result:
    """The result of all workers together; its time is that of the slowest worker."""
    iterations = parts[0].iterations
    if any(part.iterations != iterations for part in parts):
        raise PeerError("the workers do not agree on the number of iterations")
    each = 2.0 * options.size * options.tensors * iterations
    latencies = [latency for part in parts for latency in part.latencies_us]
    return Result(
        goodput_mb_s_per_worker=each / 1e6 / max(part.elapsed_s for part in parts),
        cpu_s_per_gb=sum(part.cpu_s for part in parts) / (each * len(parts) / 1e9),
        p50_us=percentile(latencies, 0.50),
        p99_us=percentile(latencies, 0.99),
        iterations=iterations,
    )


def write_part(folder: str, rank: int, part: Part) -> None:
    """Writes the file that the runner waits for, atomically."""
    half = Path(folder, f"{rank}.half")
    half.write_text(json.dumps(asdict(part)))
    half.replace(Path(folder, f"{rank}.json"))


def parts_written(folder: str, workers: int) -> bool:
    """Whether all workers have written their measurements."""
    return all(Path(folder, f"{rank}.json").exists() for rank in range(workers))


def read_parts(folder: str, workers: int) -> list[Part]:
    """Reads the measurements of all workers."""
    return [Part(**json.loads(Path(folder, f"{rank}.json").read_text())) for rank in range(workers)]


def report(measure: Callable[[], Result | dict[str, Any] | None]) -> None:
    """Prints the result of measure() as the last line, if there is one; on a PeerError prints it and exits with 1."""
    try:
        result = measure()
    except PeerError as error:
        sys.exit(str(error))
    if result is not None:
        print(json.dumps(result if isinstance(result, dict) else asdict(result)))
