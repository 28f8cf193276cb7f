"""Pictures where matplotlib, an extra, is not installed: a sentence with the way out."""

import pytest
from synthetic_log import Pipeline, write_run

from hpcpipe.analyze import AnalysisError, drawing, plot_gantt
from hpcpipe.analyze.pictures.draw import to_svg
from hpcpipe.events import open_run


def test_without_matplotlib_a_picture_is_refused_with_the_extra_to_install(tmp_path, monkeypatch):
    write_run(tmp_path, Pipeline(stages=2, microbatches=2, forward=10, backward=20))
    monkeypatch.setattr(drawing, "find_spec", lambda name: None if name == "matplotlib" else object())
    with pytest.raises(AnalysisError, match=r"pip install 'hpcpipe\[plots\]'"):
        plot_gantt(open_run(tmp_path), tmp_path / "gantt.svg")
    with pytest.raises(AnalysisError, match="matplotlib"):
        to_svg("classes", None)
    assert not drawing.can_draw()
