"""The pictures beside the Gantt: what is counted for them against closed forms, and that they are drawn and named."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_log import Pipeline, write_run

from hpcpipe.analyze.pictures import CHARTS, measure, split_name
from hpcpipe.analyze.pictures.measures import MOMENTS, Spread
from hpcpipe.cli.analyze import analyze
from hpcpipe.events import open_run
from hpcpipe.plan import Kind

STAGES, MICROBATCHES = 3, 5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    latency = {1: 30_000, 2: 900_000}
    write_run(
        folder,
        Pipeline(
            STAGES, MICROBATCHES, 1_000_000, 2_000_000, steps=4, offsets=(0, 5_000_000, -7_000_000),
            latency=lambda kind, stage, _: latency[stage] if kind is Kind.F else 60_000,
        ),
    )  # fmt: skip
    return folder


def test_latencies_are_those_of_each_edge_on_one_clock(run: Path) -> None:
    found = measure(open_run(run)).latencies
    assert found.keys() == {(0, 1), (1, 2), (1, 0), (2, 1)}
    for edge, latency in {(0, 1): 30_000, (1, 2): 900_000, (2, 1): 60_000, (1, 0): 60_000}.items():
        assert found[edge].num == MICROBATCHES * 4
        assert found[edge].total == pytest.approx(latency * MICROBATCHES * 4, rel=1e-3)
        assert found[edge].quantile(0.5) == pytest.approx(latency, rel=0.06)


def test_durations_are_counted_by_kind_in_the_chosen_steps_only(run: Path) -> None:
    found = measure(open_run(run), (1, 2)).durations
    assert found.keys() == {Kind.F, Kind.B}
    assert found[Kind.F].num == found[Kind.B].num == STAGES * MICROBATCHES * 2
    assert found[Kind.B].total == 2 * found[Kind.F].total


def test_ready_sets_are_averaged_by_stage_and_moment(run: Path) -> None:
    mean = measure(open_run(run)).ready_mean
    assert mean.shape == (STAGES, MOMENTS)
    assert np.nanmin(mean) == np.nanmax(mean) == 1.0
    assert np.isnan(mean[2, 0])


def test_a_spread_finds_quantiles_within_a_bin_of_the_exact_ones() -> None:
    lengths = np.round(np.random.default_rng(7).lognormal(13, 1.5, 50_000)).astype(np.int64)
    spread = Spread()
    spread.add(lengths[:20_000])
    spread.add(lengths[20_000:])
    for share in (0.1, 0.5, 0.99):
        assert spread.quantile(share) == pytest.approx(np.quantile(lengths, share), rel=0.06)
    assert math.isnan(Spread().quantile(0.5))


@pytest.mark.parametrize("name", CHARTS)
def test_each_picture_is_drawn_by_its_name(run: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.svg"
    result = CliRunner().invoke(analyze, [str(run), "--plot", f"{name}:{path}"])
    assert result.exit_code == 0, result.stderr
    assert f"picture {path}" in result.stdout
    text = path.read_text()
    assert CHARTS[name].headline in text
    assert "synthetic · hint 1f1b" in text
    if name == "classes":
        assert len(re.findall('id="class-forward-', text)) == STAGES


def test_a_file_that_looks_like_a_name_is_still_a_file() -> None:
    assert split_name("classes.png") == ("gantt", Path("classes.png"))
    assert split_name("c:classes.png") == ("gantt", Path("c:classes.png"))
    assert split_name("steps:out/a.png") == ("steps", Path("out/a.png"))


@pytest.mark.parametrize("name", ["ready", "gantt"])
def test_a_picture_of_another_kind_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(analyze, [str(run), "--plot", f"{name}:{tmp_path / 'a.pdf'}"])
    assert result.exit_code == 2
    assert "use .png or .svg" in result.stderr


def test_the_same_log_gives_the_same_picture(run: Path, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        CliRunner().invoke(analyze, [str(run), "--plot", f"latency:{tmp_path / name}"])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
