"""`hpcpipe simulate` as its users meet it: closed forms in its numbers, the same output for a seed, clear refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from job_text import SYNTHETIC, VALID, write_job

from hpcpipe.cli import main

STAGES, MICROBATCHES, FORWARD_MS, BACKWARD_MS = 4, 8, 5, 10
EMULATED = f"""\
{SYNTHETIC}\
forward_ms = {FORWARD_MS}
backward_ms = {BACKWARD_MS}
weight_ms = 5
message_bytes = 1000000
[parallel]
pipeline = {STAGES}
[batch]
microbatches = {MICROBATCHES}
[schedule]
hint = "bf"
"""
NOISY = ('variability.compute={model="lognormal",sigma=0.5}', 'variability.network={model="lognormal"}')


def simulate(job: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["simulate", str(job), *words])


def document(job: Path, *words: str) -> dict:
    result = simulate(job, *words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, EMULATED, corpus=None)


def test_what_slices_take_to_agree_lengthens_every_way_between_stages(job: Path) -> None:
    """The first micro-batch passes S - 1 edges forwards, the last one as many backwards, and each costs a round."""
    more = ("--set", "parallel.tensor=2", "--set", "batch.microbatches=1", "--compare", "1f1b:fixed")
    free = document(job, *more)["results"]
    asked = document(job, *more, "--agreement-us", "100")["results"]
    assert asked[0]["step_ns"] == free[0]["step_ns"] + 2 * (STAGES - 1) * 100_000
    assert asked[1]["step_ns"] == free[1]["step_ns"]
    alone = simulate(job, "--agreement-us", "100")
    assert "--agreement-us unused: with tensor = 1 nobody is asked" in alone.stderr


def test_a_task_of_slices_waits_for_the_latest_of_its_messages(job: Path) -> None:
    noisy = ("--set", 'variability.network={model="lognormal",base_ms=1.0,sigma=1.0}')
    lengths = [
        document(job, *noisy, "--set", f"parallel.tensor={tensor}")["results"][0]["step_ns"] for tensor in (1, 2, 4)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]


def test_quiet_steps_have_the_lengths_and_peaks_of_the_closed_forms(job: Path) -> None:
    found = document(job, "--compare", "gpipe:fixed,zb-h1:fixed,kfkb:k=2:fixed")
    half = (BACKWARD_MS - 5) * 1e6
    whole = (FORWARD_MS + BACKWARD_MS) * 1e6
    by_hint = {each["hint"]: each for each in found["results"]}
    flat = (MICROBATCHES + STAGES - 1) * whole
    assert by_hint["gpipe"]["step_ns"] == by_hint["bf"]["step_ns"] == found["baseline"]["step_ns"] == flat
    assert by_hint["zb-h1"]["step_ns"] == MICROBATCHES * whole + (STAGES - 1) * (FORWARD_MS * 1e6 + half - 5e6)
    assert by_hint["gpipe"]["peak_in_flight"] == [MICROBATCHES] * STAGES
    assert found["baseline"]["peak_in_flight"] == [4, 3, 2, 1]
    assert found["baseline"]["peak_bytes"] == [4_000_000, 3_000_000, 2_000_000, 1_000_000]
    assert by_hint["kfkb"]["peak_in_flight"] == [8, 6, 4, 2]
    for each in found["results"]:
        assert each["bubble_ratio"] == pytest.approx(1 - MICROBATCHES * whole / each["step_ns"])
        assert each["speedup"] == pytest.approx(flat / each["step_ns"])
        assert set(each) >= {"hint", "dispatch", "in_flight", "k", "classes", "peak_in_flight", "critical_path"}
        assert sum(each["critical_path"].values()) == pytest.approx(1.0)


def test_every_schedule_meets_the_same_draws_and_a_seed_gives_the_same_output(job: Path) -> None:
    noise = [word for each in NOISY for word in ("--set", each)]
    words = [*noise, "--compare", "1f1b:fixed,zbv,bf:in_flight=2x", "--json"]
    once, again = simulate(job, *words), simulate(job, *words)
    assert once.stdout == again.stdout
    found = json.loads(once.stdout)
    assert found["results"][1]["step_ns"] == found["baseline"]["step_ns"]
    assert found["results"][3]["in_flight"] == "2x"
    other = document(job, *noise, "--set", "variability.seed=1")
    assert other["results"][0]["step_ns"] != found["results"][0]["step_ns"]


def test_another_number_of_ranks_makes_the_pipeline_longer(job: Path) -> None:
    found = document(job, "--ranks", "6")
    assert len(found["results"][0]["peak_in_flight"]) == 6
    assert found["results"][0]["step_ns"] == (MICROBATCHES + 5) * 15e6


def test_the_table_names_every_schedule_with_its_memory(job: Path, tmp_path: Path) -> None:
    picture = tmp_path / "gantt.png"
    result = simulate(job, "--compare", "zbv", "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    for word in ("ready bf", "ready zbv", "fixed 1f1b", "stash", "MiB", "critical path of ready zbv", "[variability]"):
        assert word in result.stdout
    for name in ("ready-bf", "ready-zbv"):
        drawn = tmp_path / f"gantt-{name}.png"
        assert drawn.read_bytes().startswith(b"\x89PNG")
        assert f"picture {drawn}" in result.stdout.replace("\n", "")


def test_a_gpt_is_predicted_from_its_flops(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID)
    slow = document(path, "--tflops", "1e-6", "--gbit", "1e9", "--latency-us", "0")
    dim, tokens, seq_len, vocabulary = 64, 32, 32, 256
    blocks = 4 * (12 * dim * dim + 2 * dim * seq_len)
    forward_and_backward = 3 * 2 * tokens * (blocks + dim * vocabulary) / 1e6 * 1e9
    useful = sum(slow["results"][0]["classes"][each] for each in ("forward", "backward", "weight"))
    assert useful == pytest.approx(6 * 8 * forward_and_backward, rel=1e-3)
    assert "1e-06 TFLOP/s" in slow["assumptions"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compare", "bg"], 'hint = "bg" is not known'),
        (["--compare", "bf:fast"], "'fast' is neither fixed, ready"),
        (["--compare", "bf:fixed"], "is none: it ranks what is ready"),
        (["--set", "schedule.in_flight=[1]"], "in_flight lists 1 stage"),
        (["--from", "nowhere"], "there is no such run"),
        (["--plot", "picture.jpeg"], "picture.jpeg"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_a_sentence(job: Path, words: list[str], said: str) -> None:
    result = simulate(job, *words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_options_without_effect_are_named(job: Path) -> None:
    assert "--tflops unused" in simulate(job, "--tflops", "3").stderr


def test_an_emulated_job_is_simulated_without_mpi_and_torch(job: Path) -> None:
    code = f"""
import sys
from hpcpipe.cli import main
try:
    main(["simulate", {str(job)!r}, "--json"])
except SystemExit as end:
    assert end.code in (0, None), end.code
heavy = [name for name in ("mpi4py", "torch", "hpcpipe._native") if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_admission_moves_work_and_makes_none(job: Path) -> None:
    costs = ("--set", 'variability.compute={model="microbatch",sigma=0.8}')
    rules = ("ascending", "descending", "pyramid", "auto")
    found = document(
        job, *costs, "--compare", ",".join(f"zb-h1:fixed:admission={rule}" for rule in ("as-given", *rules))
    )
    _, given, *sorted_ = found["results"]
    assert [each["admission"] for each in sorted_] == list(rules)
    for each in sorted_:
        for work in ("forward", "backward", "weight"):
            assert each["classes"][work] == given["classes"][work]
    pyramid, auto = sorted_[2:]
    assert pyramid["step_ns"] < given["step_ns"]
    assert auto["step_ns"] <= pyramid["step_ns"]


def test_admission_by_costs_that_nobody_knows_changes_nothing_and_says_so(job: Path) -> None:
    noise = ("--set", 'variability.compute={model="lognormal",sigma=0.8}')
    result = simulate(job, *noise, "--set", "schedule.admission=pyramid", "--json")
    assert "changes nothing" in result.stderr
    assert json.loads(result.stdout)["results"][0]["step_ns"] == document(job, *noise)["results"][0]["step_ns"]


def test_slices_share_the_work_of_a_model_and_pay_for_their_sums(tmp_path: Path) -> None:
    """On links that cost nothing T slices take a T-th of the time; two sums a block cost 2 (T - 1) / T of its bytes."""
    sized = (
        VALID.replace("pipeline = 2", "pipeline = 1")
        .replace("layers = 4", "layers = 1")
        .replace('kind = "text"\n', 'kind = "text"\nseq_len = 32\n')
    )
    job = write_job(tmp_path, sized + '[batch]\nmicrobatches = 1\n[schedule]\nhint = "bf"\n')
    free = ("--gbit", "1e9", "--latency-us", "0", "--tflops", "0.001")

    def step_ns(tensor: int, *words: str) -> int:
        return document(job, "--set", f"parallel.tensor={tensor}", *words)["results"][0]["step_ns"]

    whole, half = step_ns(1, *free), step_ns(2, *free)
    assert half == pytest.approx(whole / 2, rel=1e-3)
    slow = step_ns(2, "--gbit", "1", "--latency-us", "0", "--tflops", "0.001")
    num_bytes = 4 * 32 * 64  # one sequence of 32 tokens of width 64, in fp32
    assert slow - half == pytest.approx(4 * num_bytes * 8, rel=1e-3)


def test_a_job_that_chooses_its_grouping_is_compared_with_schedules_that_have_none(tmp_path: Path) -> None:
    tuned = ('schedule.hint="kfkb"', 'tune.grouping="on"', 'tune.memory_limit="1 GiB"', "tune.interval=30")
    settings = [word for each in tuned for word in ("--set", each)]
    found = document(Path(__file__).parents[2] / "jobs" / "emulated.toml", *settings, "--compare", "zbv,kfkb:k=2:fixed")
    assert [each["hint"] for each in found["results"]] == ["kfkb", "zbv", "kfkb"]
