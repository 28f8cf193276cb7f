"""The command `hpcpipe analyze` from outside: what it prints, draws, refuses, and what it never imports."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import h5py
import pytest
from click.testing import CliRunner, Result
from matplotlib import image
from rich.console import Console
from synthetic_log import Pipeline, header, write_run

from hpcpipe.analyze import plot_gantt, render_text, summarize
from hpcpipe.cli.analyze import analyze
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import TimeClass


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    pipeline = Pipeline(4, 8, 1_000_000, 2_000_000, steps=4, update=300_000, latency=lambda *_: 40_000)
    write_run(folder, pipeline)
    return folder


def call(*words: object) -> Result:
    return CliRunner().invoke(analyze, [str(word) for word in words])


def refused(result: Result) -> str:
    """Return the message of a call that must have been refused without a traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    return result.stderr


def test_the_text_names_the_largest_loss_and_what_it_means(run: Path) -> None:
    result = call(run)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "synthetic · hint 1f1b · dispatch fixed" in words
    assert "is dependency: nothing was ready, a neighbour had not produced it yet" in words
    assert "27.3% (4 stages, 8 micro-batches)" in words
    assert "parallel efficiency" in words


@pytest.mark.parametrize("width", [80, 160])
def test_the_text_fits_its_width_and_cuts_no_number(run: Path, width: int) -> None:
    console = Console(width=width, record=True, file=sys.stderr)
    report = summarize(open_run(run))
    classes = {each: report.wall_ns // len(TimeClass) for each in report.classes}  # every column there can be
    ranks = tuple(replace(rank, classes=classes, peak_bytes=130 << 30) for rank in report.ranks)
    console.print(render_text(replace(report, classes=classes, ranks=ranks)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for heading in ("flight", "MiB", "useful", "133120"):
        assert heading in text


def test_json_is_one_document_and_nothing_else(run: Path) -> None:
    result = call(run, "--json", "--step", "1:2")
    document = json.loads(result.stdout)
    assert document["steps"] == [1, 2]
    assert result.stderr == ""


def test_json_of_several_runs_holds_them_in_order(run: Path, tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(2, 2, 10, 20))
    document = json.loads(call(run, tmp_path, "--json").stdout)
    assert [each["world_size"] for each in document["runs"]] == [4, 2]
    assert document["format"] == "hpcpipe-analysis"


def test_several_runs_stand_side_by_side(run: Path, tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(4, 8, 2_000_000, 4_000_000, "gpipe", steps=2, hint="gpipe"))
    words = " ".join(call(run, tmp_path).stdout.split())
    assert "bubble" in words
    assert "peak in flight" in words


def test_pictures_are_drawn_as_png_and_svg(run: Path, tmp_path: Path) -> None:
    result = call(run, "--step", "1:2", "--plot", tmp_path / "a.png", "--plot", tmp_path / "a.svg")
    assert result.exit_code == 0, result.stderr
    pixels = image.imread(tmp_path / "a.png")
    assert pixels.shape[1] > 1000
    colours = {tuple((255 * pixel[:3]).round().astype(int)) for row in pixels[::9] for pixel in row[::9]}
    assert {(0, 114, 178), (230, 159, 0)} <= colours
    tree = ET.parse(tmp_path / "a.svg")
    texts = {"".join(node.itertext()).strip() for node in tree.iter() if node.tag.endswith("}text")}
    assert {"forward", "backward", "dependency", "stage 0", "stage 3", "step 1", "step 2", "ms"} <= texts
    assert "synthetic · hint 1f1b · dispatch fixed · steps 1 to 2" in texts


def test_the_same_log_gives_the_same_svg(run: Path, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot_gantt(open_run(run), tmp_path / name, (1, 1))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_many_ranks_still_make_a_picture_of_a_size_that_opens(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(64, 4, 1_000, 2_000))
    plot_gantt(open_run(tmp_path), tmp_path / "a.png")
    assert image.imread(tmp_path / "a.png").shape[0] < 4000


@pytest.mark.parametrize("steps", ["x", "3:1", ":", "1:2:3", "-1"])
def test_a_step_range_that_is_none_is_refused(run: Path, steps: str) -> None:
    assert "--step" in refused(call(run, f"--step={steps}"))


def test_steps_that_are_not_there_are_refused_with_those_that_are(run: Path) -> None:
    assert "all ranks finished 0 to 3" in refused(call(run, "--step", "90:91"))


def test_another_kind_of_picture_is_refused(run: Path, tmp_path: Path) -> None:
    assert "use .png or .svg" in refused(call(run, "--plot", tmp_path / "a.pdf"))


def test_a_picture_in_a_folder_that_is_not_there_is_refused(run: Path, tmp_path: Path) -> None:
    assert "there is no folder" in refused(call(run, "--plot", tmp_path / "absent" / "a.png"))


def test_a_picture_of_two_runs_is_refused(run: Path, tmp_path: Path) -> None:
    assert "one RUN" in refused(call(run, run, "--plot", tmp_path / "a.png"))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no")
    EventWriter(tmp_path / "empty.h5", header()).close()
    assert "no such run" in refused(call(tmp_path / "absent"))
    assert "not an HDF5 file" in refused(call(tmp_path / "text.h5"))
    assert "no rank has finished a step" in refused(call(tmp_path / "empty.h5"))
    assert "no event log here" in refused(call(tmp_path))
    assert "RUN" in refused(call())


def with_attribute(path: Path, name: str, value: str) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs[name] = value


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_text("step,loss"), "not an HDF5 file"),
        (lambda path: path.write_bytes(b""), "an empty file"),
        (lambda path: path.write_bytes(path.read_bytes()[:700]), "cut short after 700"),
        (lambda path: with_attribute(path, "format", "other"), "not an event log"),
        (lambda path: with_attribute(path, "schema_version", "2.0.0"), "update hpcpipe"),
    ],
)
def test_an_unreadable_log_is_refused_alone_and_left_out_among_others(
    run: Path, tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    (tmp_path / "events").mkdir()
    for path in sorted((run / "events").iterdir()):
        (tmp_path / "events" / path.name).write_bytes(path.read_bytes())
    spoiled = tmp_path / "events" / "rank_00002.h5"
    spoil(spoiled)
    assert words in refused(call(spoiled))
    result = call(tmp_path)
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert words in said
    assert "rank 2 of 4 missing" in said


def test_two_runs_are_compared_in_words_and_in_json(run: Path, tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(4, 8, 1_100_000, 2_200_000, steps=9, update=300_000))
    usual = tmp_path / "usual"
    write_run(usual, Pipeline(4, 8, 1_000_000, 2_000_000, steps=9, update=300_000))
    result = call(usual, tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "A step of B is 9.9% longer than one of A" in " ".join(result.stdout.split())
    (comparison,) = json.loads(call(usual, tmp_path, "--json").stdout)["comparisons"]
    # a step of 1F1B at its steady pace: 8 micro-batches and 3 stages of filling, of 3.0 and of 3.3 ms, and 0.3 ms
    assert comparison["relative"]["certain"]
    assert comparison["paired"]
    assert comparison["classes"]["forward"]["mean"] == pytest.approx(8 * 100_000)
    assert comparison["classes"]["backward"]["mean"] == pytest.approx(8 * 200_000)


def test_a_peak_must_be_more_than_nothing(run: Path) -> None:
    assert "--peak-tflops" in refused(call(run, "--peak-tflops", 0))


def test_a_gap_is_shown_but_stops_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    for path in sorted((run / "events").iterdir())[:3]:
        (tmp_path / "events" / path.name).write_bytes(path.read_bytes())
    result = call(tmp_path)
    assert result.exit_code == 0
    assert "rank 3 of 4 missing" in " ".join(result.stdout.split())


def test_analyze_imports_neither_mpi_nor_torch(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom hpcpipe.cli.analyze import analyze\n"
        f"analyze([{str(run)!r}, '--json', '--plot', {str(tmp_path / 'a.png')!r}], standalone_mode=False)\n"
        "assert not {'mpi4py', 'torch', 'hpcpipe._native'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
