"""What-if questions about recorded runs: closed forms of schedules, of a network without time and of even stages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from job_text import SYNTHETIC, write_job
from stored_log import store
from synthetic_log import Pipeline, write_run

from hpcpipe.analyze.prediction import predict
from hpcpipe.analyze.what_if import IDEAL_NETWORK, NO_STRAGGLER, Question, what_if
from hpcpipe.cli.analyze import analyze
from hpcpipe.events import RunLog
from hpcpipe.job import load_job
from hpcpipe.simulate.costs import emulated_costs

STAGES, MICROBATCHES, FORWARD_MS, BACKWARD_MS = 4, 8, 5, 10
FLAT = (MICROBATCHES + STAGES - 1) * (FORWARD_MS + BACKWARD_MS) * 1_000_000
JOB = f"""\
{SYNTHETIC}\
forward_ms = {FORWARD_MS}
backward_ms = {BACKWARD_MS}
weight_ms = 5
[parallel]
pipeline = {STAGES}
[batch]
microbatches = {MICROBATCHES}
[schedule]
hint = "1f1b"
dispatch = "fixed"
"""


def simulated(folder: Path, *settings: str) -> RunLog:
    """Return the log of five steps of the job; it stands for a recorded one."""
    job = load_job(write_job(folder, JOB, corpus=None), settings)
    log = predict(job, emulated_costs(job), range(5)).log
    assert log is not None
    return log


def test_a_run_simulated_under_its_own_schedule_takes_as_long_as_it_did(tmp_path: Path) -> None:
    found = what_if(simulated(tmp_path), [])
    assert found.own_error == 0
    assert found.own.step_ns == found.recorded_step_ns == FLAT


def test_another_schedule_takes_what_its_closed_form_says(tmp_path: Path) -> None:
    zb_h1 = Question("zb-h1,fixed", ("schedule.hint=zb-h1", "schedule.dispatch=fixed"))
    (found,) = what_if(simulated(tmp_path), [zb_h1]).answers
    # arXiv 2401.10241, table 2: M (F + B + W) + (S - 1)(F + B - W); half of a whole backward is taken for W
    assert found.prediction.step_ns == (MICROBATCHES * 15 + (STAGES - 1) * 5) * 1_000_000


def test_an_ideal_network_takes_away_what_messages_cost(tmp_path: Path) -> None:
    run = simulated(tmp_path, 'variability.network={model="constant",base_ms=1}')
    found = what_if(run, [Question(IDEAL_NETWORK, changes=(IDEAL_NETWORK,))])
    assert found.recorded_step_ns > FLAT
    assert found.answers[0].prediction.step_ns == FLAT


def test_without_its_straggler_a_pipeline_runs_as_an_even_one(tmp_path: Path) -> None:
    run = simulated(tmp_path, 'variability.compute={model="straggler",stage=2,factor=1.5}')
    found = what_if(run, [Question(NO_STRAGGLER, changes=(NO_STRAGGLER,))])
    assert found.recorded_step_ns > FLAT
    assert found.answers[0].prediction.step_ns == FLAT


def test_the_command_shows_answers_beside_the_simulators_own_error(tmp_path: Path) -> None:
    run = store(simulated(tmp_path), tmp_path / "run")
    words = ["--what-if", "zb-h1,fixed", "--what-if", "gpipe,k=1,fixed,ideal-network"]
    result = CliRunner().invoke(analyze, [str(run), *words])
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "fixed zb-h1 135.00 1.222x" in said
    assert "off by 0.00% a step" in said
    document = json.loads(CliRunner().invoke(analyze, [str(run), *words, "--json"]).stdout)["what_if"]
    assert document["own_error"] == 0
    assert [(each["hint"], each["changes"]) for each in document["results"]] == [
        ("zb-h1", []),
        ("gpipe", ["ideal-network"]),
    ]
    assert document["results"][0]["speedup"] == pytest.approx(165 / 135)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("", "nothing is asked"),
        ("zb", 'did you mean "zbv"'),
        ("1f1b,soon", "'soon' is neither fixed, ready, k=N nor a cap"),
        ("bf,fixed", 'set hint = "1f1b"'),
        ("bf,3,admission=up", "schedule.admission"),
        ("bf,1GiB", "sizes of activations"),
        ("file:absent.csv,fixed", "cannot be read"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path, asked: str, words: str) -> None:
    run = store(simulated(tmp_path), tmp_path / "run")
    result = CliRunner().invoke(analyze, [str(run), "--what-if", asked])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_log_without_a_whole_job_is_analysed_but_not_simulated(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(2, 2, 10, 20, steps=3))
    result = CliRunner().invoke(analyze, [str(tmp_path), "--what-if", "gpipe"])
    assert result.exit_code == 2
    assert "cannot be simulated again" in result.stderr


def test_no_output_of_the_command_imports_mpi_or_torch(tmp_path: Path) -> None:
    run = store(simulated(tmp_path), tmp_path / "run", [(1, "k=2", "why")])
    words = [str(run), "--what-if", "zb-h1,ideal-network", "--plot", f"steps:{tmp_path / 'a.svg'}"]
    for name, value in (("html", "p.html"), ("perfetto", "t.json"), ("parquet", "pq"), ("csv", "csv")):
        words += [f"--{name}", str(tmp_path / value)]
    code = (
        "import sys\nfrom hpcpipe.cli.analyze import analyze\n"
        f"analyze({words!r}, standalone_mode=False)\nanalyze([{str(run)!r}, '--follow'], standalone_mode=False)\n"
        "assert not {'mpi4py', 'torch', 'hpcpipe._native'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "5 of 100 steps · steps 0 to 4: 165.00 ms a step" in done.stdout
    assert "<title>simulated · " in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize("others", [["--json"], ["--what-if", "bf"], ["--step", "1"], ["--html", "p.html"], ["other"]])
def test_following_takes_one_run_and_no_other_options(others: list[str]) -> None:
    result = CliRunner().invoke(analyze, ["run", "--follow", *others])
    assert result.exit_code == 2
    assert "no other options" in result.stderr
