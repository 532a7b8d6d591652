"""Builds the wheel for every distribution with glibc 2.28 or newer, however new this machine's own is.

python scripts/manylinux.py FOLDER   writes the wheel into the folder

It needs the dependency group `manylinux`. zig's C compiler links against a glibc of any version, and pyzmq's wheel
brings a libzmq and a libsodium that were built for an old one. The headers of libzmq and Python are this machine's.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import ziglang
import zmq

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(sys.executable).parent
GLIBC = "2.28"

PKG_CONFIG = """\
Name: libzmq
Description: the libzmq in pyzmq's wheel
Version: {version}
Libs: -lzmq
"""


def describe(libzmq: Path, folder: Path) -> None:
    """Writes the files for pkg-config and the linker. The extension will refer to libzmq by its SONAME, not this."""
    (folder / "libzmq.so").symlink_to(libzmq)
    (folder / "libzmq.pc").write_text(PKG_CONFIG.format(version=zmq.zmq_version()))


def compiler() -> str:
    """The C compiler's command line."""
    query = ["pkg-config", "--variable=includedir", "libzmq"]
    includes = {"/usr/include", subprocess.check_output(query, text=True).strip()}
    # Given a target, zig searches none of the system's folders. These come after its own headers of that glibc.
    options = [f"-idirafter {path}" for path in sorted(includes)]
    zig = Path(ziglang.__file__).with_name("zig")
    return " ".join([f"{zig} cc -target {platform.machine()}-linux-gnu.{GLIBC}", *options])


def build(libzmq: Path, folder: Path) -> Path:
    """The wheel, linked to a libzmq that it does not hold yet."""
    describe(libzmq, folder)
    # The folder is not in libzmq.pc: Go's build cache would keep it, as it does not notice what pkg-config says anew.
    environment = {**os.environ, "CC": compiler(), "CGO_LDFLAGS": f"-L{folder}", "PKG_CONFIG_PATH": str(folder)}
    pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder]
    subprocess.run([*pip, ROOT], env=environment, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def bundle(wheel: Path, libraries: Path, folder: Path) -> None:
    """Writes the wheel with libzmq and libsodium inside; fails if anything in it needs a newer glibc."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
    auditwheel: list[str | Path] = [PROGRAMS / "auditwheel", "repair", "--plat", tag, "--wheel-dir", folder]
    subprocess.run([*auditwheel, wheel], env=environment, check=True)


def main(folder: Path) -> None:
    libraries = Path(zmq.__file__).parents[1] / "pyzmq.libs"
    (libzmq,) = libraries.glob("libzmq-*.so.*")
    work = ROOT / "build" / "manylinux"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    bundle(build(libzmq, work), libraries, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
