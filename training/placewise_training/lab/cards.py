"""Parts of a model card (Markdown) that every model has."""

from collections.abc import Mapping
from typing import Any


def facts(rows: Mapping[str, object]) -> str:
    """The lines of a table of two columns."""
    return "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def exported(report: Mapping[str, Any]) -> str:
    """The opset and the parity of a report's export; "-" before the export."""
    return f"ONNX opset {report['opset']}, parity with torch {report['parity']:.1e}" if "opset" in report else "-"
