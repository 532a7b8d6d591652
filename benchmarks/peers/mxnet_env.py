"""Makes .venv-mxnet, the environment that MXNet 1.9.1 needs: an older Python and an older numpy than fptps's.

python3 -m benchmarks.peers.mxnet_env     (make peers runs it)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .common import PeerError, report
from .mxnet import ENVIRONMENT

PYTHONS = ("3.11", "3.10", "3.9")
"""The newest first. MXNet and fptps run on all of them; the newest numpy that MXNet can use does not run on 3.12."""
PACKAGES = ("mxnet==1.9.1", "numpy<1.24")


def candidates() -> list[str]:
    """Python interpreters to try: by name, and in the folders of pyenv and uv."""
    found = [sys.executable]
    for version in PYTHONS:
        found.append(f"python{version}")
        for place in (".pyenv/versions", ".local/share/uv/python"):
            found += sorted(map(str, Path.home().glob(f"{place}/*{version}.*/bin/python{version}")))
    return found


def fits(python: str) -> bool:
    """Whether it starts and has the right version. pyenv's shims may not start."""
    try:
        done = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() in PYTHONS


def run(*command: str) -> None:
    """Runs a step; raises PeerError if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise PeerError(f"{' '.join(command)} failed:\n{done.stdout.strip()}")


def make() -> dict[str, str]:
    """Makes the environment, and checks that MXNet can be imported."""
    python = next(filter(fits, candidates()), None)
    if python is None:
        raise PeerError(
            f"MXNet 1.9.1 needs a Python of {PYTHONS[-1]} to {PYTHONS[0]}, and none is here: "
            "install one (apt-get install python3.11, pyenv install 3.11, or uv python install 3.11)."
        )
    run(python, "-m", "venv", "--clear", str(ENVIRONMENT))
    inside = str(ENVIRONMENT / "bin" / "python")
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES)
    run(inside, "-c", "import mxnet; assert mxnet.runtime.Features().is_enabled('DIST_KVSTORE')")
    return {"python": inside, "made_with": python}


if __name__ == "__main__":
    report(make)
