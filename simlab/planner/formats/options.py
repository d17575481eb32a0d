"""The options of another project's configuration, of which each is taken once or named as left over."""

from collections.abc import Mapping
from typing import Any

from simlab.errors import InputError, require_whole, shortened

Settings = dict[str, Any]
"""{option: value}; the options of a section are a table of their own."""


class Options:
    """The options that a file gives, by their full names, such as "parallelism.tensor_parallel_degree".

    What is taken is no longer there: `left` says which options nobody asked for.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._values = dict(_flat(content))
        self.unsaid: list[str] = []
        """What of the options that were taken a plan cannot say, in words."""

    def take(self, option: str, default: Any = None) -> Any:
        """The value of an option; `default` where it is not given or null."""
        value = self._values.pop(option, None)
        return default if value is None else value

    def rename(self, names: Mapping[str, str]) -> None:
        """Take options by older names for those of {older name: name}."""
        for older, name in names.items():
            value = self._values.pop(older, None)
            if value is None:
                continue
            if self._values.setdefault(name, value) != value:
                raise InputError(f"{older} and {name} differ: give one of them")

    def whole(self, option: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number. `InputError` for anything else."""
        value = self.take(option)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 5e8, as JSON files have it
        require_whole(option, value, least)
        return int(value)

    def switch(self, option: str, default: bool = False) -> bool:
        """A truth value. `InputError` for anything else."""
        value = self.take(option, default)
        if not isinstance(value, bool):
            raise InputError(f"{option} = {shortened(value)}: give true or false")
        return value

    def choice(self, option: str, meanings: Mapping[str, Any], default: Any) -> Any:
        """What one of several texts means. Another one is named among `unsaid`, and `default` taken."""
        value = self.take(option)
        if value is None:
            return default
        if isinstance(value, str) and value in meanings:
            return meanings[value]
        self.unsaid.append(f"{option} = {shortened(value)}")
        return default

    @property
    def left(self) -> list[str]:
        """[options that were not taken]"""
        return [*self._values]


def _flat(content: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in content.items():
        if not isinstance(key, str):
            raise InputError(f"{shortened(key)} is no option: give names")
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{before}{key}.")
        else:
            pairs.append((before + key, value))
    return pairs


def replicas(gpus: int | None, split: int) -> int:
    """The data-parallel replicas of `gpus` GPUs of which `split` share a model."""
    if gpus is None:
        raise InputError("the file does not say how many GPUs there are: give --gpus")
    require_whole("gpus", gpus)
    if gpus % split:
        raise InputError(f"{gpus} GPUs cannot be split into replicas of {split}")
    return gpus // split


def microbatches(option: str, batch: int, dp: int, size: int) -> int:
    """The microbatches of a replica, of a global batch of sequences that `option` says."""
    if batch % (dp * size):
        raise InputError(
            f"{option} = {batch} is no multiple of {dp} replicas x {size} sequences in a microbatch"
        )
    return batch // (dp * size)
