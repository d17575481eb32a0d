"""python assets/record.py FOLDER: keep the traces of a realrun output folder here, and draw the
README's picture.

What is kept is what was measured on the day: the lessons show it where torch is not installed. Run
by `make record`.
"""

import shutil
import sys
from pathlib import Path

import simlab as sl
from simlab.cli import main as commands

HERE = Path(__file__).parent
# the rest of the folder is recorded by others
MADE = "calibration*.json", "*-predicted.json", "*-measured.json"


def main(folder):
    """Copy calibration and traces of `folder` to assets/recorded and draw the pictures."""
    kept = HERE / "recorded"
    kept.mkdir(exist_ok=True)
    for old in (old for made in MADE for old in kept.glob(made)):
        old.unlink()
    for calibration in folder.glob("calibration*.json"):
        shutil.copy(calibration, kept)
    for name in (path.name for path in folder.iterdir() if path.is_dir()):
        for label in ("predicted", "measured"):
            shutil.copy(folder / name / f"{label}.json", kept / f"{name}-{label}.json")
    pair = [sl.Trace.load(kept / f"1f1b-{label}.json") for label in ("predicted", "measured")]
    error = sl.compare(*pair).step_s.error
    longer = "longer" if error > 0 else "shorter"
    picture = sl.timeline(
        pair, caption=f"1F1B on 4 processes: predicted step {abs(error):.1%} {longer} than measured"
    )
    picture.savefig(HERE / "predicted_over_measured.png", dpi=100)
    runs = HERE.parent / "tests" / "published" / "runs.csv"
    commands.main(["validate", str(runs), "--picture", str(HERE / "published_runs.png")])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
