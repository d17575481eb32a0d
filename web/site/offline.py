"""What the site's service worker needs to know of a build, so that the site works without a network.

python web/site/offline.py FOLDER writes it anew for the site in FOLDER, one of whose files has changed.
"""

import gzip
import json
import sys
from hashlib import sha256
from pathlib import Path

SCRIPT = "offline.js"
DIGITS = 12  # of a hash
LATER = ("lessons/", "python/", "share/")
"""Folders whose files are kept when a page has shown them, but for the index of the lessons."""
BUILD = "const BUILD = "


def write(folder: Path) -> None:
    """Write the build's version, the hash of each file and those to keep at once before the code of the
    service worker. JupyterLite has a service worker of its own."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(("jupyterlite/", ".")) and name != SCRIPT:
            data = path.read_bytes()
            content = gzip.decompress(data) if path.suffix == ".gz" else data
            hashes[name] = sha256(content).hexdigest()[:DIGITS]
    first = [
        name
        for name in hashes
        if (not name.startswith(LATER) and not name.endswith(".gz")) or name == "lessons/index.html"
    ]
    version = sha256(json.dumps(hashes).encode()).hexdigest()[:DIGITS]
    build = {"version": version, "hashes": hashes, "first": first}
    script = folder / SCRIPT
    code = script.read_text(encoding="utf-8")
    if code.startswith(BUILD):
        code = code.partition("\n")[2]
    build_text = json.dumps(build, separators=(",", ":"))
    script.write_text(f"{BUILD}{build_text};\n{code}", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
