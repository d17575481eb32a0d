"""Machines as people have them: another folder, home, locale, terminal and user, and other programs
beside. `make test-elsewhere` runs the README's commands on each of them."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from matplotlib.font_manager import FontManager, json_dump

from simlab.lessons import book

ROOT = Path(__file__).parents[2]
DEMO = ("--pp", "2", "--microbatches", "4", "--forward-ms", "5", "--schedule", "gpipe,1f1b")
DEMO += ("--max-error", "1000")  # which holds of no machine that does something else, too
FEW = (
    "tests/lessons/test_drill.py",
    "tests/lessons/test_course.py",
    "tests/simlab/views/test_wording.py",
    "tests/simlab/operations/test_doctor.py",
    "tests/realrun/launch/test_folder.py",
)
"""Tests that a home, a locale, a terminal, a umask or fonts could disturb."""
PYTHONS = ("python3.11", "python3.12", "python3.13")
MATPLOTLIBRC = """\
backend: svg
font.family: cursive
font.size: 31
figure.figsize: 1, 1
figure.autolayout: True
axes.unicode_minus: False
axes.facecolor: black
text.color: white
savefig.format: pdf
savefig.bbox: tight
interactive: True
"""


@dataclass(frozen=True)
class Place:
    """One machine.

    variables: of its environment, besides the PATH.
    umask:     what files that are made there do not allow.
    used:      whether its home holds a learner's progress, settings, and a list of fonts from before
               Chinese ones came; None is a home that cannot be written to.
    guest:     whether the user is one who can install nothing.
    load:      how many other programs compute beside.
    """

    variables: dict[str, str] = field(default_factory=dict)
    umask: int = 0o022
    used: bool | None = False
    guest: bool = False
    load: int = 0


CHINESE = {
    "LANG": "zh_CN.UTF-8",
    "LC_ALL": "zh_CN.UTF-8",
    "SIMLAB_LANG": "zh",
    "TZ": "Asia/Kathmandu",
    "COLUMNS": "40",
    "FORCE_COLOR": "1",
    "TERM": "xterm-256color",
    "OMP_NUM_THREADS": "64",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONWARNINGS": "default",
    "NCCL_ALGO": "Tree",
    "CUDA_LAUNCH_BLOCKING": "1",
}
BARE = {"LANG": "C", "LC_ALL": "C", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
PLACES = {
    "a learner's, in Chinese": Place(CHINESE, used=True),
    "a bare one without a home": Place(BARE, umask=0o077, used=None),
    "a guest's, who installs nothing": Place(umask=0o077, guest=True),
    "a busy one": Place(used=True, load=2),
}


def checkout(folder):
    """Copy what belongs to this checkout, as it is now, into `folder`, as a repository of its own."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def used_home(home):
    """Fill `home` with what a learner leaves there, and with settings of one's own."""
    done = {
        name: {"values": {}, "found": {key: _answer(of) for key, of in one.fields.items()}}
        for name, one in book.predictions().items()
    }
    _write(home / ".simlab" / "progress.json", json.dumps({"predictions": done}))
    _write(home / ".config" / "matplotlib" / "matplotlibrc", MATPLOTLIBRC)
    cache = home / ".cache" / "matplotlib" / f"fontlist-v{FontManager.__version__}.json"
    cache.parent.mkdir(parents=True)
    old = FontManager()
    old.ttflist = [font for font in old.ttflist if "CJK" not in str(font.fname)]
    json_dump(old, cache)
    _write(home / ".ipython" / "profile_default" / "startup" / "own.py", "1 / 0\n")


def _answer(asked):
    options = getattr(asked, "options", None)
    return options[0] if options else 1.0


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@contextmanager
def machine(place, folder):
    """(checkout, the arguments of `subprocess.run` for a command there) in `folder`, which is
    empty."""
    home = folder / "home"
    home.mkdir()
    if place.used:
        used_home(home)
    its = checkout(folder / "实验 室" / "simlab realrun")
    variables = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    where = str(home) if place.used is not None else "/dev/null/home"
    run = {"cwd": its, "env": variables | {"HOME": where} | place.variables, "umask": place.umask}
    if place.guest and os.getuid() == 0:
        guest = pwd.getpwnam("nobody")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, guest.pw_uid, guest.pw_gid)
        run |= {"user": guest.pw_uid, "group": guest.pw_gid, "extra_groups": []}
        home.chmod(0o555)
    with ExitStack() as ending:
        for _ in range(place.load):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            ending.callback(busy.wait)
            ending.callback(busy.kill)
        yield its, run


def _is_there(python, run):
    """Whether the user of a machine has such a command, and more behind it than a tool that chooses
    among versions."""
    try:
        return subprocess.run([python, "-c", ""], **run, capture_output=True).returncode == 0
    except OSError:
        return False


def main():
    """Run `make demo` and `make test` in every place, with each Python that its user has; print what
    failed. The arguments are the tests to run; a few that the place could disturb unless given."""
    tests = " ".join(sys.argv[1:] or FEW)
    failed = 0
    for (name, place), python in product(PLACES.items(), PYTHONS):
        with (
            tempfile.TemporaryDirectory(prefix="elsewhere-", ignore_cleanup_errors=True) as base,
            machine(place, Path(base)) as (_, run),
        ):
            os.chmod(base, 0o755)
            if not _is_there(python, run):
                print(f"{name}, {python}: is not there", flush=True)
                continue
            for command in (["demo"], ["test", f"TESTS={tests}"]):
                done = subprocess.run(
                    ["make", f"PYTHON={python}", *command], **run, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
                failed += done.returncode != 0
                end = done.stdout.strip().splitlines()[-15 if done.returncode else -1 :]
                print(f"{name}, {python}: make {command[0]}:", *end, sep="\n    ", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
