"""Builds the Go core as fptps._fptps, one extension module for every CPython from 3.9 on.

In a temporary folder gopy writes a cgo function for each function of the Go package pybind and their description for
pybindgen, which writes the C side of the module; a few edits make both fit CPython's limited API (abi3); one `go build`
compiles and links all of it. A Go workspace joins the temporary package to the sources, where nothing is written.
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
# Other Go libraries and another libzmq may live in the same process: nothing but the module's entry is visible.
EXPORTS = f"{{ global: PyInit__{NAME}; local: *; }};\n"

# What the limited API lacks, and its replacement. PyComplex_AsCComplex and PyMethod_Check are called by helpers of
# gopy that pybind's functions (integers and strings) never reach, but that are compiled all the same.
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
    """Applies the replacements to a generated file. A text that is not there means that its generator has changed."""
    text = path.read_text()
    for old, new in edits.items():
        if old not in text:
            raise PlatformError(
                f"{path.name}, as generated, lacks {old!r}: setup.py does not fit this gopy or pybindgen"
            )
        text = text.replace(old, new)
    path.write_text(text)


def replace_cgo_flags(path: Path) -> None:
    """Puts our compiler flags in place of gopy's, which link libpython and hold this Python's own build flags."""
    flags = f"-I{sysconfig.get_path('include')} -DPy_LIMITED_API={LIMITED_API}"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#cgo ")]
    lines.insert(lines.index("/*", 1) + 1, f"#cgo CFLAGS: {flags}")
    path.write_text("\n".join(lines) + "\n")


def run_in(folder: Path, *command: str, workspace: str = "off") -> None:
    """Runs a command with the Go workspace (none by default); its failure ends the build."""
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
    # gopy means the header of a first build of the Go side; cgo writes the same one during ours.
    (folder / f"{NAME}_go.h").write_text('#include "_cgo_export.h"\n')


def link(folder: Path, version: str, target: Path) -> None:
    """Compiles the folder's package and what it imports, and links them into the target."""
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
    """The build_ext of an extension module that is written in Go."""

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
