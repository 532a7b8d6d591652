"""The documentation as a site (`make site`): it builds without warnings, needs no other host, and has the whole API."""

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fptps

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("site")  # which builds it once


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_it(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_it_loads_nothing_from_other_hosts(site):
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert loads.findall(text) == []
        assert "mermaid" not in text, "mkdocs-material fetches mermaid from another host: draw it as text"
    for path in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)", path.read_text()) == []


def test_links_of_the_pages_outside_docs():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("examples/**/*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text())]
    assert len(links) > 20
    assert [(page, link) for page, link in links if not (page.parent / link).exists()] == []


def listed_in(path):
    """The names in the __all__ of a module that is not imported."""
    last = ast.parse(path.read_text()).body[-1]
    assert ast.unparse(last.targets[0]) == "__all__"
    return ast.literal_eval(last.value)


def public_names():
    """What the public modules, those without an underscore in their path, say that they export."""
    names = set(fptps.__all__)
    for module in pkgutil.walk_packages(fptps.__path__, "fptps."):
        if module.name == "fptps.mxnet":  # MXNet needs an older Python than this one may be
            names |= set(listed_in(Path(fptps.__file__).parent / "mxnet" / "__init__.py"))
        elif not re.search(r"\._|mxnet_", module.name):
            names |= set(getattr(importlib.import_module(module.name), "__all__", []))
    return {name for name in names if not name.startswith("__")}


@pytest.mark.demo
def test_the_site_has_every_public_name(site):
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    anchors = set(re.findall(r'id="fptps\.([\w.]*)"', text))
    assert public_names() - {anchor.rpartition(".")[2] for anchor in anchors} == set()
    assert [anchor for anchor in anchors if re.search(r"\b_", anchor)] == []
