"""The site as `make site` builds it, once for all tests, and a plain file server of it."""

import functools
import http.server
import os
import subprocess
import sys
import threading

import pytest
from filelock import FileLock

from tests.support.browser import ROOT, WEB, chromium_page


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built here as `make site` does: its path is a relative one. All
    processes of a run of pytest share it, and the first that needs it builds it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "site"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "built").exists():
            command = [sys.executable, WEB / "site" / "build.py", "build/site"]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, cwd=folder
            )
            assert done.returncode == 0, done.stderr[-3000:]
            (folder / "built").touch()
    return folder / "build" / "site"


@pytest.fixture(scope="session")
def address(site):
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with chromium_page() as page:
        yield page.context.browser
