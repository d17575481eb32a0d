"""What the lessons ask and how they judge: predictions, exercises, figures, and the words of both
languages. Nothing here shows anything; `simlab.apps` and the command line do."""

from pathlib import Path


def _folder(name: str, checkout: str) -> Path:
    """A folder that the wheel brings, or the one of the checkout that it is made of."""
    brought = Path(__file__).with_name(name)
    return brought if brought.is_dir() else Path(__file__).parents[2] / checkout


NOTEBOOKS = _folder("notebooks", "notebooks")
"""Where the lessons are, each in both languages."""
RECORDED = _folder("recorded", "assets/recorded")
"""Where the recorded runs are that lessons show where torch is not installed."""
