"""torch → ONNX for every model: written, compared with torch, sampled, and only then put in place.

A report (JSON) goes beside the graphs. It carries the sample that the service checks when it loads the bundle. The
manifest, with the checksums, is written by `placewise bundle build`.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from placewise_models.session import open_session

OPSET = 18  # of the nets that torch's exporter writes
TOLERANCE = 1e-5  # absolute and relative

Arrays = Mapping[str, NDArray[Any]]


class ParityError(RuntimeError):
    """ONNX Runtime and torch disagree: the export is wrong, nothing was written."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One net in one file: its inputs and outputs by name, and the inputs that it is compared on.

    `draw` makes inputs of a size from a seed, in the order of the net's arguments. `is_used` marks the answers that
    count (all unless given): those of padding do not. `axes` names the dimensions of any length.
    """

    file: str
    outputs: tuple[str, ...]
    draw: Callable[[tuple[int, ...], int], Arrays]
    sizes: Sequence[tuple[int, ...]]
    sample_size: tuple[int, ...]
    axes: Mapping[int, str]
    is_used: Callable[[Arrays], NDArray[np.bool_]] | None = None

    def trace(self, net: torch.nn.Module, path: Path, columns: Sequence[str]) -> None:
        """Writes the net by torch's exporter, with the names of its `columns` in the file's own metadata."""
        inputs = self.draw(self.sample_size, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the tracer; the newer exporter needs onnxscript
            torch.onnx.export(
                net.eval(),
                tuple(torch.from_numpy(array) for array in inputs.values()),
                str(path),
                input_names=list(inputs),
                output_names=list(self.outputs),
                dynamic_axes={name: dict(self.axes) for name in (*inputs, *self.outputs)},
                opset_version=OPSET,
                dynamo=False,
            )
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
        onnx.helper.set_model_props(model, {"columns": ",".join(columns)})
        onnx.save(model, str(path))

    def parity(self, net: torch.nn.Module, path: Path) -> float:
        """Largest difference between torch and ONNX Runtime, over 1 + |value|, on random inputs of every size; NaN if
        one of them answers NaN."""
        session = open_session(path.read_bytes(), path.name)
        gaps = []
        for seed, size in enumerate([*self.sizes] * 3):
            inputs = self.draw(size, seed)
            with torch.no_grad():
                answers = net(*(torch.from_numpy(array) for array in inputs.values()))
            ours = (answers,) if isinstance(answers, torch.Tensor) else answers
            used = self.is_used(inputs) if self.is_used else ...
            for mine, theirs in zip(ours, session.run(list(self.outputs), dict(inputs)), strict=True):
                gaps.append(gap(mine.numpy(), theirs)[used].max())
        return float(np.max(gaps))

    def sample(self, path: Path) -> dict[str, object]:
        """A small input with the answer it must give, as plain lists."""
        drawn = self.draw(self.sample_size, 99)
        inputs = {name: np.round(array, 3) for name, array in drawn.items()}
        answers = open_session(path.read_bytes(), path.name).run(list(self.outputs), dict(inputs))
        named = {**inputs, **dict(zip(self.outputs, answers, strict=True))}
        return {name: array.tolist() for name, array in named.items()}


def gap(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
    """The distance of two answers: absolute for small values, relative for large ones."""
    return np.asarray(np.abs(ours - theirs) / (1 + np.abs(ours)))


def export(
    run: Path,
    into: Path,
    files: Sequence[str],
    report: str,
    write: Callable[[Path], None],
    parity: Callable[[Path], float],
    sample: Callable[[Path], object],
    **facts: object,
) -> tuple[Path, ...]:
    """The paths of a model's `files` in the folder `into`, with the report of the training `run` and `facts` beside it.

    `write` fills a folder with the files; `parity` and `sample` read them there. Raises ParityError and leaves `into`
    unchanged then.
    """
    into.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=into) as name:
        made = Path(name)
        write(made)
        worst = parity(made)
        if not worst <= TOLERANCE:
            raise ParityError(f"torch and ONNX Runtime differ by {worst:.2g}, more than {TOLERANCE:g}: not exported")
        found = json.loads((run / report).read_text("utf-8"))
        found |= {**facts, "parity": worst, "sample": sample(made)}
        (into / report).write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        return tuple((made / file).replace(into / file) for file in files)


def export_graph(
    run: Path, into: Path, graph: Graph, report: str, net: torch.nn.Module, write: Callable[[Path], None], opset: int
) -> Path:
    """`export` of a model that is one graph; the path of it. `write` gets the path of the file to write."""
    file = graph.file
    (model,) = export(
        run,
        into,
        (file,),
        report,
        lambda folder: write(folder / file),
        lambda folder: graph.parity(net, folder / file),
        lambda folder: graph.sample(folder / file),
        opset=opset,
    )
    return model
