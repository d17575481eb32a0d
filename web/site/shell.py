"""What all pages of the site have in common, put around the content of each.

`pages.json` lists the pages in the order of the navigation: the path, the names of the link, the
title in both languages, what it is about and the picture that stands for it where the page is shared,
the script (without one: `site`), and what is loaded early. To add a page, add an entry and its content
in `pages/`.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

HERE = Path(__file__).parent
SHARED = HERE.parents[1] / "assets" / "share"
"""The pictures that stand for pages, which `assets/share.py` draws."""
Page = Mapping[str, Any]


class Shell:
    """Writes pages into `folder`.

    address: where the site will be, from the environment variable SITE_URL, with a slash at its end; ""
             where that is not known. Services that show a shared page need it for the page's picture.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages: list[Page] = json.loads((HERE / "pages.json").read_text(encoding="utf-8"))
        site = os.environ.get("SITE_URL", "")
        self.address = f"{site.rstrip('/')}/" if site else ""
        shutil.copytree(SHARED, folder / "share", dirs_exist_ok=True)
        self.templates = Environment(loader=FileSystemLoader(HERE))

    def render(self, name: str, **values: Any) -> str:
        """The template `name`, with `values`."""
        return self.templates.get_template(name).render(**values)

    def page(self, path: str) -> Page:
        """The entry of `path`."""
        return next(page for page in self.pages if page["path"] == path)

    def write(self, page: Page, content: str) -> None:
        """Write `page`, an entry of the navigation or one like it, with `content`, HTML."""
        path = self.folder / page["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * page["path"].count("/")
        text = self.render(
            "shell.html", page=page, entries=self.pages, root=root, address=self.address, content=content
        )  # fmt: skip
        path.write_text(text, encoding="utf-8")
