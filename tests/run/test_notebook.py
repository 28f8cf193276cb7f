"""The notebook of the documentation: kept without outputs, and every cell of it runs."""

import json

import pytest
from command import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "analyse_a_run.ipynb"


def test_the_notebook_has_no_outputs_and_runs(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=110, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    said = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/svg+xml" in output.get("data", {}) for output in said)
    assert len([output for output in said if output.output_type == "execute_result"]) >= 5
    assert not list(tmp_path.iterdir())
