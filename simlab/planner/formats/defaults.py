"""What a project does where its configuration says nothing, and where that was read."""

from typing import NamedTuple


class Default(NamedTuple):
    """One default of a project."""

    field: str
    """The field of a plan."""
    value: str
    """Its value, in words."""
    source: str
    """Project, revision, file and line, or what it is called there."""
