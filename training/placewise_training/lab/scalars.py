"""TensorBoard scalars of a training run, where TensorBoard is installed. Prints nothing."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Scalars:
    """Called with (name, value, step); writes into `out`/tensorboard, or nowhere."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._writer: Any = None

    def __enter__(self) -> Self:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra that training can do without
        except ImportError:
            return self
        self._writer = SummaryWriter(str(self._out / "tensorboard"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, name: str, value: float, step: int) -> None:
        if self._writer is not None:
            self._writer.add_scalar(name, value, step)
