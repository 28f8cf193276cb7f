"""Comparisons of runs: intervals hold the truth as often as they claim; words, warm-up; speed against hand values."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from synthetic_log import Pipeline, header, write_run

from hpcpipe.analyze import Report, compare, render_side_by_side, summarize
from hpcpipe.analyze.compare import num_warmup
from hpcpipe.analyze.describe import read_job
from hpcpipe.analyze.throughput import flops_per_token
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import Kind, TimeClass


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, Pipeline(2, 2, 1_000, 2_000, steps=1))
    return summarize(open_run(folder))


def with_steps(report: Report, lengths: np.ndarray, first: int = 0) -> Report:
    """Return the report of a run whose steps have these lengths, all of it forwards."""
    lengths = np.rint(lengths).astype(np.int64)
    classes = np.zeros((len(lengths), len(TimeClass)), dtype=np.int64)
    classes[:, TimeClass.FORWARD] = lengths * len(report.ranks)
    steps = np.arange(first, first + len(lengths))
    times = replace(report.step_times, wall=lengths)
    return replace(report, step_times=times, step_classes=classes, step_numbers=steps, num_steps=len(lengths))


def test_intervals_hold_the_true_difference_about_as_often_as_they_say(report: Report) -> None:
    chance, held = np.random.default_rng(3), 0
    for _ in range(60):
        one, two = (chance.normal(mean, 3_000, 120) for mean in (100_000, 101_000))
        step = compare(with_steps(report, one), with_steps(report, two, first=1_000)).step
        assert step is not None
        held += step.low <= 1_000 <= step.high
    assert held >= 51  # of 60 at 95 %: fewer than 52 happen once in 2,000 times; block bootstraps are a little narrow


def test_steps_that_vary_together_are_compared_in_pairs(report: Report) -> None:
    chance = np.random.default_rng(5)
    common = chance.normal(100_000, 20_000, 80)
    one, two = with_steps(report, common), with_steps(report, common + chance.normal(500, 100, 80))
    paired, apart = compare(one, two), compare(one, replace(two, step_numbers=two.step_numbers + 1_000))
    assert paired.paired and not apart.paired
    assert paired.step is not None and apart.step is not None
    assert paired.step.certain and not apart.step.certain
    assert paired.step.mean == pytest.approx(500, abs=60)
    assert paired.classes[TimeClass.FORWARD].certain


def test_the_same_run_twice_does_not_differ(report: Report) -> None:
    run = with_steps(report, np.random.default_rng(1).normal(100_000, 5_000, 50))
    again = compare(run, run)
    assert again.step is not None and (again.step.mean, again.step.low, again.step.high) == (0, 0, 0)
    assert not again.step.certain


def test_first_steps_that_are_longer_than_usual_are_left_out(report: Report) -> None:
    lengths = np.random.default_rng(2).normal(100_000, 1_000, 40)
    assert num_warmup(np.rint(lengths).astype(np.int64)) == 0
    slow = lengths.copy()
    slow[:3] = (900_000, 400_000, 150_000)
    slow[20] = 500_000
    assert num_warmup(np.rint(slow).astype(np.int64)) == 3
    assert num_warmup(np.geomspace(1e6, 1e3, 40).astype(np.int64)) == 10  # never settles: a quarter at most
    assert num_warmup(np.array([900, 100, 100, 100])) == 0  # too few to tell
    assert compare(with_steps(report, slow), with_steps(report, lengths)).warmup == (3, 0)


def text_of(one: Report, two: Report, width: int = 80) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(render_side_by_side([one, two], [compare(one, two)]))
    return " ".join(console.export_text().split())


def test_words_say_whether_a_difference_is_larger_than_the_noise(report: Report) -> None:
    chance = np.random.default_rng(9)
    usual = with_steps(report, chance.normal(1e8, 1e6, 60))
    slow = with_steps(report, chance.normal(1.1e8, 1e6, 60))
    other = with_steps(report, chance.normal(1e8, 1e6, 60))
    assert "A step of B is 10" in text_of(usual, slow)
    assert "longer than one of A" in text_of(usual, slow)
    assert "larger than the noise." in text_of(usual, slow)
    assert "What differs most, a step on a rank: forward +" in text_of(usual, slow)
    assert "No difference between B and A beyond the noise" in text_of(usual, other)
    assert "too few steps" in text_of(report, report)


def test_runs_of_other_batches_are_not_paired_and_that_is_said(report: Report) -> None:
    run = with_steps(report, np.full(20, 1e6) + np.arange(20))
    other = replace(run, throughput=replace(run.throughput, tokens_per_step=99.0))
    assert not compare(run, other).paired
    assert "different numbers of tokens" in text_of(run, other)


GPT = '[model]\nkind = "gpt"\nlayers = 96\ndim = 12288\nheads = 96\ncontext = 2048\nvocab_size = 51200\n'


def test_the_model_flops_of_gpt_3_are_the_papers() -> None:
    # arXiv 2104.04473, table 1: 174.6e9 parameters; its 96 B s l h² (...) recomputes, which counts 8 instead of 6
    job = read_job(header(toml=GPT))
    flops = flops_per_token(job)
    assert flops is not None
    layers, width, words, sequence = 96, 12288, 51200, 2048
    paper = 96 * layers * width**2 * (1 + sequence / (6 * width) + words / (16 * layers * width))
    head = 6 * words * width  # the paper counts the head without recomputation: 96/16 = 6 V h
    assert flops == pytest.approx((paper - head) * 6 / 8 + head)
    assert flops / 6 == pytest.approx(174.6e9, rel=0.03)


def test_speed_and_mfu_are_tokens_and_flops_over_time(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "rank_00000.h5", header(toml=GPT)) as writer:
        for step in range(2):
            writer.event(Kind.F, step, 0, 0, 0, step * 10**9, (step + 1) * 10**9)
            writer.step(step, step * 10**9, (step + 1) * 10**9, tokens=100)
    speed = summarize(open_run(tmp_path), peak_tflops=1000).throughput
    flops = flops_per_token(read_job(header(toml=GPT)))
    assert flops is not None
    assert (speed.tokens_per_s, speed.tokens_per_step) == (100, 100)
    assert speed.mfu == pytest.approx(100 * flops / 1e15)


def test_an_unknown_model_has_no_mfu_and_that_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(2, 2, 1_000, 2_000))
    report = summarize(open_run(tmp_path), peak_tflops=1000)
    assert report.throughput.mfu == 0
    assert any("no MFU" in gap for gap in report.gaps)
