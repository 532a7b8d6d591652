"""Finds the system packages that the build lacks, and prints or runs the command that installs them.

python3 scripts/system_packages.py             exit 0 if none is missing; else prints the command, exit 1
python3 scripts/system_packages.py --install   runs the command, as root or with passwordless sudo
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

GO_NEEDED = (1, 26)
PYTHON_NEEDED = (3, 9)

# Package of each need, by package manager. Empty: another package of the system contains it.
PACKAGES = {
    #             apt-get           dnf                     pacman     zypper             apk
    "compiler": ("gcc libc6-dev", "gcc", "gcc", "gcc", "gcc musl-dev"),
    "pkg-config": ("pkg-config", "pkgconf-pkg-config", "pkgconf", "pkg-config", "pkgconf"),
    "libzmq": ("libzmq3-dev", "zeromq-devel", "zeromq", "zeromq-devel", "zeromq-dev"),
    "Python.h": ("python3-dev", "python3-devel", "", "python3-devel", "python3-dev"),
    "venv": ("python3-venv", "", "", "", ""),
}
INSTALL = {
    "apt-get": "apt-get update -q && apt-get install -y -q --no-install-recommends",
    "dnf": "dnf install -y",
    "pacman": "pacman -S --noconfirm --needed",
    "zypper": "zypper --non-interactive install",
    "apk": "apk add",
}


def succeeds(*command: str) -> bool:
    """True when the command exists and exits with 0."""
    if not shutil.which(command[0]):
        return False
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def missing(for_development: bool = False) -> list[str]:
    """The needs (keys of PACKAGES) that this machine lacks."""
    found = {
        "compiler": shutil.which(os.environ.get("CC", "gcc").split()[0]) is not None,
        "pkg-config": shutil.which("pkg-config") is not None,
        # Without pkg-config libzmq counts as missing too, so that one command installs both.
        "libzmq": succeeds("pkg-config", "--exists", "libzmq >= 4.2"),
        "Python.h": Path(sysconfig.get_path("include"), "Python.h").exists(),
        "venv": not for_development or importlib.util.find_spec("ensurepip") is not None,
    }
    return [need for need, present in found.items() if not present]


def install_command(needs: list[str]) -> str | None:
    """The shell command that installs the needs, or None without a known package manager."""
    for column, manager in enumerate(INSTALL):
        if shutil.which(manager):
            packages = " ".join(PACKAGES[need][column] for need in needs)
            return f"{INSTALL[manager]} {' '.join(packages.split())}"
    return None


def go_problem() -> str | None:
    """Why the Go toolchain is unusable, or None."""
    wanted = ".".join(map(str, GO_NEEDED))
    remedy = f"install Go {wanted} or newer (https://go.dev/dl/) and put its bin folder on PATH"
    if not shutil.which("go"):
        return f"fptps needs Go {wanted} or newer to build, and there is no `go` on PATH: {remedy}."
    # Outside the module: inside, an old Go would refuse go.mod instead of printing its version.
    version = subprocess.run(["go", "version"], cwd="/", capture_output=True, text=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < GO_NEEDED:
        return f"fptps needs Go {wanted} or newer to build, and `go` on PATH is {found[0]}: {remedy}."
    return None


def needs_problem(needs: list[str]) -> str:
    """A sentence that names the missing packages and the command that installs them."""
    command = install_command(needs)
    if command is None:
        return f"fptps needs these to build: {', '.join(needs)}. Install them with the system's package manager."
    sudo = "" if os.geteuid() == 0 else "sudo "
    command = " && ".join(sudo + part for part in command.split(" && "))
    return f"fptps needs these system packages to build: {', '.join(needs)}. Run: {command}"


def check() -> None:
    """Raises RuntimeError, with the remedy, unless this machine can build the extension module."""
    problem = go_problem()
    needs = missing()
    if needs:
        problem = f"{problem} {needs_problem(needs)}" if problem else needs_problem(needs)
    if problem:
        raise RuntimeError(problem)


def main(arguments: list[str]) -> None:
    if sys.version_info < PYTHON_NEEDED:
        sys.exit(
            f"fptps needs Python 3.9 or newer, and {sys.executable} is older: make PYTHON=python3.x names another."
        )
    problem = go_problem()
    if problem:
        sys.exit(problem)
    needs = missing(for_development=True)
    if not needs:
        return
    command = install_command(needs)
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if arguments != ["--install"] or command is None or (sudo and not succeeds("sudo", "-n", "true")):
        sys.exit(needs_problem(needs))
    print(f"installing the system packages for {', '.join(needs)}: {command}", flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run([*sudo, "sh", "-c", command], env=environment, check=False)
    still = missing(for_development=True)
    if still:
        sys.exit(needs_problem(still))


if __name__ == "__main__":
    main(sys.argv[1:])
