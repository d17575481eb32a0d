"""The front end's bundle: the one in the package is what the sources in web/ give."""

import json
import subprocess

from simlab.views.language import LANGUAGE
from tests.support.browser import BUNDLE, WEB, needs_node
from tests.support.patience import PATIENCE_S


def npm(*arguments):
    return subprocess.run(
        ["npm", "--prefix", WEB, *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )


def hexes(value):
    """Every "#RRGGBB" in a JSON value."""
    if isinstance(value, dict):
        return {colour for item in value.values() for colour in hexes(item)}
    if isinstance(value, list):
        return {colour for item in value for colour in hexes(item)}
    return {value} if isinstance(value, str) and value.startswith("#") else set()


@needs_node
def test_the_bundle_in_the_package_is_what_the_sources_give(tmp_path):
    done = npm("run", "--silent", "build", "--", tmp_path)
    assert done.returncode == 0, done.stderr
    built = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in BUNDLE.iterdir()}
    assert built == kept, "run `npm run build --prefix web` and commit simlab/views/bundle"


@needs_node
def test_the_sources_have_types_and_pass_their_own_tests():
    for script in ("check", "test"):
        done = npm("run", "--silent", script)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_the_bundle_has_every_colour_of_the_language_and_asks_for_nothing_elsewhere():
    text = (BUNDLE / "timeline.js").read_text(encoding="utf-8")
    assert hexes(LANGUAGE) <= {f"#{part[:6]}" for part in text.split("#")}
    assert "http" not in text and "import(" not in text


def test_the_locked_packages_come_from_the_registry_and_none_is_needed_when_the_page_is_used():
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    about = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in about
    for name, package in lock["packages"].items():
        if name:
            assert package["integrity"].startswith("sha512-"), name
            origin = package.get("resolved", "https://registry.npmjs.org/")
            assert origin.startswith("https://registry.npmjs.org/"), name
