"""The wheel: one extension module for every CPython, nothing visible in it but its entry, libzmq inside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUPPORTED = range(9, 14)  # CPython 3.x
OLDEST_GLIBC = (2, 28)

# One group, so that `make wheel` runs once also where tests run side by side.
pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]

# Run in a fresh environment that holds only the wheel and its dependencies.
PROGRAM = """
import json
from pathlib import Path

import fptps
import numpy as np


def work():
    with fptps.KVWorker() as kv:
        a = np.arange(100_000, dtype=np.float32) * (kv.rank + 1)
        kv.init(7, np.zeros_like(a))
        kv.push_pull(7, a, out=a).result()
    maps = Path("/proc/self/maps").read_text().split()
    return float(a.sum(dtype=np.float64)), sorted({path for path in maps if "libzmq" in path})


if __name__ == "__main__":
    print(json.dumps(fptps.LocalCluster(2, 1, timeout=60.0).run(work)))
"""


def run(*command: str | Path, **options: object) -> str:
    """Runs a command to its end and gives its standard output; on failure the test shows all that it printed."""
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


def plain_environment(**more: str) -> dict[str, str]:
    """The environment without the names that would lead a fresh Python back to this tree, or a make to its caller."""
    drop = ("PYTHON", "MAKE", "MFLAGS", "VIRTUAL_ENV", "DMLC_", "FPTPS_", "PS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(drop)} | more


def pythons() -> dict[str, Path]:
    """The supported CPythons of this machine, oldest first: on PATH, under pyenv, and this one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for minor in SUPPORTED:
        version = f"3.{minor}"
        candidates = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python{version}")]
        if sys.version_info[:2] == (3, minor):
            candidates.append(sys.executable)
        for candidate in filter(None, candidates):
            # A shim of pyenv may be there and refuse; a Python of Debian's may lack ensurepip.
            if subprocess.run([candidate, "-c", "import ensurepip, ssl"], capture_output=True).returncode == 0:
                found[version] = Path(candidate)
                break
    return found


def oldest_and_newest() -> list[object]:
    found = pythons()
    ends = list(dict.fromkeys([min(found, key=minor), max(found, key=minor)])) if found else []
    return [pytest.param(found[version], id=version) for version in ends]


def minor(version: str) -> int:
    return int(version.split(".")[1])


@pytest.fixture(scope="session")
def wheel() -> Path:
    run("make", "wheel", cwd=ROOT, env=plain_environment())
    (found,) = (ROOT / "dist").glob("*.whl")
    return found


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def fresh_environment(python: Path | str, folder: Path, requirement: str | Path) -> Path:
    """The Python of a new virtual environment that holds the requirement alone.

    pip installs it from outside and compiles nothing: its own installation and the compiling take longer than a test.
    """
    run(python, "-m", "venv", "--without-pip", folder, env=plain_environment())
    fresh = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-compile", requirement]
    run(sys.executable, "-m", "pip", "--python", fresh, *install, env=plain_environment())
    return fresh


@pytest.fixture
def clean_copy(tmp_path: Path) -> Iterator[Path]:
    """The tree as a commit of everything in it would hold it: no generated file."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    copy = tmp_path / "copy"
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    yield copy
    shutil.rmtree(copy)


def test_serves_every_python_on_every_current_linux(wheel: Path) -> None:
    assert re.fullmatch(r"fptps-[\d.]+-cp39-abi3-manylinux_2_\d+_[\w.]+\.whl", wheel.name)


def test_needs_no_newer_glibc_than_documented(unpacked: Path) -> None:
    libraries = [path for path in unpacked.rglob("*") if ".so" in path.suffixes]
    assert {path.name.split("-")[0] for path in libraries} >= {"_fptps.abi3.so", "libzmq"}
    for path in libraries:
        symbols = run("objdump", "--dynamic-syms", path)
        versions = {(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", symbols)}
        assert versions, f"{path.name}: objdump shows no function of glibc's"
        assert max(versions) <= OLDEST_GLIBC, f"{path.name} needs glibc {max(versions)}"


def test_shows_nothing_but_its_entry(unpacked: Path) -> None:
    symbols = run("nm", "--dynamic", "--defined-only", "--format=posix", unpacked / "fptps" / "_fptps.abi3.so")
    assert [line.split()[0] for line in symbols.splitlines()] == ["PyInit__fptps"]


def test_holds_no_sources(unpacked: Path) -> None:
    suffixes = {path.suffix for path in (unpacked / "fptps").rglob("*") if path.is_file()}
    assert suffixes <= {".py", ".pyi", ".typed", ".so", ""}


@pytest.mark.parametrize("python", oldest_and_newest())
def test_runs_a_cluster_in_a_fresh_environment(wheel: Path, python: Path, tmp_path: Path) -> None:
    fresh = fresh_environment(python, tmp_path / "venv", f"{wheel}[testing]")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # With LD_BIND_NOW a function that this Python does not have fails the import, called or not.
    environment = plain_environment(LD_BIND_NOW="1", PYTHONWARNINGS="error")
    results = json.loads(run(fresh, program, cwd=tmp_path, env=environment, timeout=120))
    expected = 3.0 * sum(range(100_000))
    assert [total for total, _ in results] == pytest.approx([expected, expected], rel=1e-6)
    for _, libraries in results:
        assert len(libraries) == 1, f"one libzmq in a process, got {libraries}"
        assert "/fptps.libs/" in libraries[0], f"the wheel's libzmq and not the system's, got {libraries[0]}"


CORE_ALONE = """
import importlib.metadata
import subprocess
import sys

import numpy as np

import fptps

names = {each.metadata["Name"].lower() for each in importlib.metadata.distributions()}
assert names == {"fptps", "numpy", "click", "rich", "markdown-it-py", "mdurl", "pygments"}, names


def error_of(call):
    try:
        call()
    except ImportError as error:
        return str(error)


with fptps.KVWorker(num_workers=1) as kv:
    kv.init(0, np.zeros(3))
    assert kv.push_pull(0, np.ones(3)).result().tolist() == [1.0] * 3
    kv.init(1, np.zeros(3))
    kv.set_optimizer(fptps.optim.SGD(lr=0.1), [1])
    kv.save("saved.safetensors")
    assert "fptps[checkpoint]" in error_of(lambda: kv.load("saved.safetensors"))
assert "fptps[testing]" in error_of(lambda: fptps.LocalCluster(2).run(print))
assert "fptps[torch]" in error_of(lambda: __import__("fptps.torch.local"))
work = "import fptps; kv = fptps.KVWorker(); print(kv.num_workers); kv.close()"
command = [sys.executable, "-m", "fptps"]
run = [*command, "run", "-n", "2", "-s", "1", sys.executable, "-c", work]
done = subprocess.run(run, capture_output=True, text=True)
assert (done.returncode, sorted(done.stdout.split())) == (0, ["0]", "1]", "2", "2", "[worker", "[worker"]), done
done = subprocess.run([*command, "bench", "push_pull"], capture_output=True, text=True)
assert (done.returncode, "fptps[bench]" in done.stderr) == (1, True), done
"""


def test_the_core_needs_few_packages(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(sys.executable, tmp_path / "venv", wheel)
    run(python, "-c", CORE_ALONE, cwd=tmp_path, env=plain_environment(), timeout=120)


def test_builds_from_the_sdist_of_a_clean_copy_and_writes_nothing_to_the_sources(
    clean_copy: Path, tmp_path: Path
) -> None:
    before = sources(clean_copy)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, clean_copy, env=plain_environment())
    assert sources(clean_copy) == before
    (sdist,) = tmp_path.glob("fptps-*.tar.gz")
    run("tar", "-xzf", sdist, "-C", tmp_path)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    before = sources(unpacked)
    build_wheel(unpacked, tmp_path / "wheels")
    assert sources(unpacked) == before


def test_names_the_command_that_installs_a_missing_libzmq(clean_copy: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "apt-get").symlink_to("/bin/true")
    for tool in ("go", "gcc"):
        (tools / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is not on PATH"))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", clean_copy],
        env=plain_environment(PATH=str(tools)),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "error: fptps needs these system packages to build: pkg-config, libzmq. Run: " in said
    assert "apt-get install -y -q --no-install-recommends pkg-config libzmq3-dev" in said


def build_wheel(source: Path, folder: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, source, env=plain_environment())
    (built,) = folder.glob("fptps-*.whl")
    names = zipfile.ZipFile(built).namelist()
    assert "fptps/_fptps.abi3.so" in names
    assert "fptps/__init__.py" in names


def sources(folder: Path) -> set[Path]:
    """The files below the folder, but for setuptools' and Python's own."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    others = ("build", "__pycache__", "fptps.egg-info")
    return {path for path in files if not set(path.parts) & set(others)}
