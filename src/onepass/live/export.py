"""A model for other programs: ONNX, or torch's own form. From bytes of images, or from vectors, to probabilities."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from pathlib import Path

import torch

from onepass.errors import UsageError, extra
from onepass.files import write_bytes
from onepass.live.program import export_program, save_program
from onepass.live.snapshot import Snapshot

FORMS = {".onnx": "ONNX", ".pt2": "torch.export", ".onepass": "prediction alone"}


def export(snapshot: Snapshot, path: Path | str) -> str:
    """Write what predicts in the form that the ending of the path asks for. What was written."""
    path = Path(path)
    form = FORMS.get(path.suffix)
    if form is None:
        raise UsageError(f"Expected a path that ends in {', '.join(FORMS)}, got {path}.")
    if path.suffix == ".onepass":
        save_program(snapshot, path)
    elif path.suffix == ".pt2":
        content = io.BytesIO()
        torch.export.save(export_program(snapshot), content, extra_files={"onepass.json": json.dumps(facts(snapshot))})
        write_bytes(path, content.getvalue())
    else:
        write_bytes(path, onnx_bytes(snapshot))
    return form


def facts(snapshot: Snapshot) -> dict[str, object]:
    """What a program must know to use it: the names of the columns, and how samples have to look."""
    images = len(snapshot.shape) == 3
    return {
        "names": list(snapshot.names),
        "shape": list(snapshot.shape),
        "input": "bytes (n, channels, height, width), RGB" if images else "float32 (n, values)",
        "output": "probabilities (n, classes)",
        "calibrated": snapshot.calibrated,
    }


def onnx_bytes(snapshot: Snapshot) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch needs it
    except ImportError as error:
        raise UsageError(f"Expected onnx and onnxscript, got neither. Do: {extra('export')}.") from error
    exported = export_program(snapshot)
    example = torch.zeros(3, *snapshot.shape, dtype=torch.uint8 if len(snapshot.shape) == 3 else torch.float32)
    talk = logging.getLogger("torch.onnx")
    level = talk.level
    talk.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            tempfile.TemporaryDirectory() as folder,
        ):
            warnings.simplefilter("ignore")
            written = torch.onnx.export(
                exported, (example,), dynamo=True, input_names=["x"], output_names=["probabilities"], verbose=False
            )
            assert written is not None
            written.save(Path(folder) / "model.onnx")
            model = onnx.load(Path(folder) / "model.onnx")
    finally:
        talk.setLevel(level)
    for name, value in facts(snapshot).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = f"onepass.{name}", json.dumps(value)
    for node in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        node.doc_string = ""
        if hasattr(node, "metadata_props"):
            del node.metadata_props[:]  # torch writes there which line of which file an operator comes from
    content: bytes = model.SerializeToString()
    return content
