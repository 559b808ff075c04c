"""Rows of decayed sums of one cluster, as an estimator keeps them. Estimates nothing."""

from collections.abc import Iterable, Mapping

from placewise_core.speed.learned.sums import Sums, sums_of

SEPARATOR = "\x1f"  # in no kind of a subtask, as in those of co-runs (co_runs.py)


class SumRows:
    """By kind. `stamp` changes with them."""

    def __init__(self) -> None:
        self._rows: dict[str, Sums] = {}
        self.stamp = 0

    @property
    def kinds(self) -> Iterable[str]:
        """Kinds of the rows."""
        return self._rows.keys()

    def row(self, kind: str) -> Mapping[str, float]:
        """A row as the store keeps it; empty if there is none."""
        return self._rows[kind].row if kind in self._rows else {}

    def learn(self, kind: str, row: Mapping[str, float]) -> None:
        """Takes over a row from the store."""
        self._rows[kind] = sums_of(row)
        self._change()

    def forget(self, kind: str) -> None:
        """The store has forgotten a row."""
        if self._rows.pop(kind, None) is not None:
            self._change()

    def _change(self) -> None:
        self.stamp += 1
        self._drop_found()

    def _drop_found(self) -> None:
        """The estimates have to be made again."""
        raise NotImplementedError
