"""Environments of Python with other packages than this one, for tests."""

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment_with(group, folder):
    """Makes an environment with a dependency group of pyproject.toml, which sees all that this one has, such as
    PyTorch. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=100)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    (site / "outer.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    fresh = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", fresh, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--group", f"{ROOT / 'pyproject.toml'}:{group}"], check=True, timeout=500)
    return str(fresh)
