"""Builds the Go core as fptps._fptps, one extension module for every CPython from 3.9 on.

gopy generates a cgo function for each function of the Go package pybind, and a description from which pybindgen
generates the C side of the module. A few edits make both fit CPython's limited API (abi3). One `go build` compiles and
links all of it. Everything is generated in a temporary folder; a Go workspace adds the sources, which are not written
to.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT / "scripts"))
import system_packages  # noqa: E402

NAME = "fptps"  # gopy's name for the bindings; the module is _NAME
LIMITED_API = "0x03090000"

GO_MOD = "module fptps_extension\n\ngo {go}\n"
GO_WORK = 'go {go}\n\nuse (\n\t.\n\t"{root}"\n)\n'
# The process may load other Go libraries and another libzmq: export nothing but the module's init function.
EXPORTS = f"{{ global: PyInit__{NAME}; local: *; }};\n"

# Functions that the limited API lacks, with replacements. Only helpers of gopy use them, which pybind's functions
# (integers and strings) never call, but which must compile.
GO_EDITS = {
    "\treturn PyMethod_Check(obj);": "\treturn 0;",
    "static inline void gopy_err_handle() {": (
        "typedef struct { double real, imag; } gopy_complex;\n"
        "static inline gopy_complex gopy_as_complex(PyObject* o) {\n"
        "\tgopy_complex c = {PyComplex_RealAsDouble(o), PyComplex_ImagAsDouble(o)};\n"
        "\treturn c;\n"
        "}\n"
        "static inline void gopy_err_handle() {"
    ),
    "C.PyComplex_AsCComplex(": "C.gopy_as_complex(",
}
C_EDITS = {"typedef PyAsyncMethods* cmpfunc;": "typedef void* cmpfunc;"}


def edit(path: Path, edits: dict[str, str]) -> None:
    """Applies the replacements to a generated file. A missing text means that the generator has changed."""
    text = path.read_text()
    for old, new in edits.items():
        if old not in text:
            raise PlatformError(
                f"{path.name}, as generated, lacks {old!r}: setup.py does not fit this gopy or pybindgen"
            )
        text = text.replace(old, new)
    path.write_text(text)


def replace_cgo_flags(path: Path) -> None:
    """Replaces gopy's compiler flags, which link libpython and contain this Python's own build flags."""
    flags = f"-I{sysconfig.get_path('include')} -DPy_LIMITED_API={LIMITED_API}"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#cgo ")]
    lines.insert(lines.index("/*", 1) + 1, f"#cgo CFLAGS: {flags}")
    path.write_text("\n".join(lines) + "\n")


def run_in(folder: Path, *command: str, workspace: str = "off") -> None:
    """Runs a command with the given Go workspace (none by default). If it fails, so does the build."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, "GOWORK": workspace})
    if done.returncode != 0:
        line = shlex.join(command)
        raise PlatformError(f"`{line}` failed with exit code {done.returncode}: see its output above")


def generate(folder: Path) -> None:
    """Writes the extension's Go and C sources into the folder."""
    options = [f"-vm={sys.executable}", "-no-make", "-no-warn", f"-output={folder}", f"-name={NAME}"]
    run_in(ROOT, "go", "tool", "gopy", "gen", *options, "fptps/pybind")
    go_file = folder / f"{NAME}.go"
    edit(go_file, GO_EDITS)
    replace_cgo_flags(go_file)
    run_in(ROOT, "go", "tool", "goimports", "-w", str(go_file))
    run_in(folder, sys.executable, "build.py")
    edit(folder / f"{NAME}.c", C_EDITS)
    # gopy expects a header from a separate build of the Go side; cgo generates the same one during this build.
    (folder / f"{NAME}_go.h").write_text('#include "_cgo_export.h"\n')


def link(folder: Path, version: str, target: Path) -> None:
    """Compiles the folder's package with its imports, and links them into the target."""
    go = subprocess.check_output(["go", "list", "-m", "-f", "{{.GoVersion}}"], cwd=ROOT, text=True).strip()
    (folder / "go.mod").write_text(GO_MOD.format(go=go))
    workspace = folder / "go.work"
    workspace.write_text(GO_WORK.format(go=go, root=ROOT))
    exports = folder / "exports.map"
    exports.write_text(EXPORTS)
    linker = f"-ldflags=-s -w -X fptps/pybind.version={version} -extldflags=-Wl,--version-script={exports}"
    options = ["-buildmode=c-shared", "-buildvcs=false", "-trimpath", linker, "-o", str(target)]
    run_in(folder, "go", "build", *options, ".", workspace=str(workspace))
    target.with_suffix(".h").unlink()


class GoExtension(build_ext):
    """build_ext for an extension module in Go."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".abi3.so"

    def build_extension(self, ext: Extension) -> None:
        try:
            system_packages.check()
        except RuntimeError as problem:
            raise PlatformError(str(problem)) from None
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fptps-build-") as folder:
            generate(Path(folder))
            link(Path(folder), self.distribution.get_version(), target)


setup(
    ext_modules=[Extension("fptps._fptps", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": GoExtension},
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
