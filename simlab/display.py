"""It turns results into plain values for JSON, and into data frames where pandas is installed."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from simlab.errors import InputError

T = TypeVar("T")


def plain(value: Any) -> Any:
    """`value` in the types that JSON knows.

    A dataclass or a NamedTuple becomes a dictionary of its fields. Any other sequence or set becomes
    a list, and any other value that JSON does not know becomes its text.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    return str(value)


def facts_of(value: Any, kind: type[T], /, **others: Any) -> T:
    """The TypedDict `kind` of `value`: each key is its attribute of that name as `plain` has it, or one of
    `others`."""
    facts = {
        key: others[key] if key in others else plain(getattr(value, key))
        for key in kind.__annotations__
    }
    return cast(T, facts)


def data_frame(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> Any:
    """A pandas data frame of `rows`, with the names of `columns`.

    Raises `InputError` if pandas, which simlab does not require, is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError("a data frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows, columns=list(columns))
