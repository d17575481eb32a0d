"""The reference of the API, built from the docstrings."""

import inspect
import re
import subprocess
import sys

import pytest

import realrun
import simlab
from tests.support.patience import PATIENCE_S

PACKAGES = {"simlab": simlab, "realrun": realrun}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder that the generator writes."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run(
        [sys.executable, "-m", "pdoc", *PACKAGES, "-o", str(folder)], check=True, timeout=PATIENCE_S
    )
    return folder


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference_and_documented(built, package):
    page = (built / f"{package}.html").read_text(encoding="utf-8")
    for name in PACKAGES[package].__all__:
        assert f'id="{name}"' in page, name
        said = getattr(PACKAGES[package], name).__doc__ or ""
        assert said.strip() and not said.startswith(f"{name}("), name


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_is_read_without_a_network(built, package):
    page = (built / f"{package}.html").read_text(encoding="utf-8")
    loaded = re.findall(
        r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]* href="([^"]+)"', page
    )
    assert not [url for pair in loaded for url in pair if "://" in url]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_listed_in_order_and_exist(package):
    names = PACKAGES[package].__all__
    assert names == sorted(names) and len(set(names)) == len(names)
    assert all(inspect.getdoc(getattr(PACKAGES[package], name)) for name in names)
