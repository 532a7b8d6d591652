"""What the set-up does on a machine that lacks system packages; its package manager here only takes notes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "system_packages.py"
INSTALL = "apt-get install -y -q --no-install-recommends pkg-config libzmq3-dev"
INSTALL_AS_USER = f"sudo apt-get update -q && sudo {INSTALL}"


class Machine:
    """A PATH with the few programs that a test needs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.notes = folder / "notes"
        for name in ("sh", "gcc"):
            (folder / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is not on PATH"))
        self.program("go", "echo go version go1.26.8 linux/amd64")
        self.program("apt-get", f'echo "apt-get $*" >>{self.notes}')

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('sh')}\n{text}\n")
        path.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), *arguments]
        return subprocess.run(command, env={"PATH": str(self.folder)}, capture_output=True, text=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_permission_it_prints_the_command_and_stops(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 1
    assert "pkg-config, libzmq" in done.stderr
    assert INSTALL in done.stderr
    assert not machine.notes.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root is asked for no password")
def test_as_root_it_runs_the_command(machine: Machine) -> None:
    done = machine.run("--install")
    assert machine.notes.read_text().splitlines() == ["apt-get update -q", INSTALL]
    # This package manager installs nothing: the packages that are still missing are printed.
    assert done.returncode == 1
    assert INSTALL in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root needs no sudo")
def test_as_a_user_it_prints_the_command_with_sudo(machine: Machine) -> None:
    done = machine.run("--install")
    assert done.returncode == 1
    assert INSTALL_AS_USER in done.stderr
    assert not machine.notes.exists()


def test_is_silent_when_nothing_is_missing(machine: Machine) -> None:
    machine.program("pkg-config", "exit 0")
    done = machine.run("--install")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_old_go_is_named(machine: Machine) -> None:
    machine.program("go", "echo go version go1.22.3 linux/amd64")
    done = machine.run()
    assert done.returncode == 1
    assert "needs Go 1.26 or newer to build, and `go` on PATH is go1.22" in done.stderr


def test_an_unknown_package_manager_gets_the_names(machine: Machine) -> None:
    (machine.folder / "apt-get").unlink()
    done = machine.run("--install")
    assert done.returncode == 1
    assert "pkg-config, libzmq. Install them with the system's package manager." in done.stderr
