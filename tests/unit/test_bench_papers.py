"""The tables beside published figures: their formulas against closed forms, and the command that prints them."""

import json
import statistics
from math import exp

import pytest
from click.testing import CliRunner

from hpcpipe.bench.paper_adagrouper import run as adagrouper
from hpcpipe.bench.paper_dear import FORWARD_MS, MODELS, Link, fused, split, wait_free
from hpcpipe.bench.paper_rrfp import COMPUTE_SPREAD, NETWORK_SPREAD, SETTINGS, lognormal_sigma
from hpcpipe.bench.paper_rrfp import run as rrfp
from hpcpipe.bench.table import BenchTable, Column
from hpcpipe.cli import main
from hpcpipe.plan.draws import normal


@pytest.mark.parametrize("spread", [COMPUTE_SPREAD, NETWORK_SPREAD])
def test_the_lognormal_has_the_published_spread(spread):
    draws = [exp(lognormal_sigma(spread) * normal(7, i)) for i in range(40_000)]
    cuts = statistics.quantiles(draws, n=20)
    assert (cuts[-1] - cuts[0]) / cuts[9] == pytest.approx(spread, rel=0.05)


def test_readiness_gains_in_the_paper_s_settings_and_the_table_shows_both(monkeypatch):
    table = rrfp(1, settings=SETTINGS[:1])
    row = table.to_json()["rows"][0]
    assert (row["ZB*"], row["BF*"], row["BFW*"]) == (1.10, 1.43, 1.56), "arXiv 2605.18750, table 1"
    assert row["BF"] > row["BF'"] > 1.0, "messages that overtake help readiness more than those in order"
    assert row["memory"].split()[0] == "8"


def test_a_quiet_network_leaves_nothing_to_split():
    free = Link("free", 0.0, 0.0, 1.0)
    sizes = [1e6] * 10
    assert wait_free(sizes, 30.0, free) == pytest.approx(90.0)
    assert split(sizes, 30.0, free) == pytest.approx(90.0)


def test_one_group_hides_nothing_on_either_side():
    link = Link("slow", 2.0, 1.0, 1.0)
    assert wait_free([5e6], 30.0, link) == pytest.approx(90.0 + 2.0 + 5.0)
    assert split([5e6], 30.0, link) == pytest.approx(90.0 + 2.0 + 5.0)


@pytest.mark.parametrize(("forwards", "gain"), [(1, 1.0), (2, 1.0), (4, 1.25), (8, 1.125), (16, 1.0625)])
def test_many_groups_without_latency_reach_the_ideal_gain(forwards, gain):
    """t_ff + max(t_bp, t_ar) over max(t_ff, t_ag) + max(t_bp, t_rs), with t_bp = 2 t_ff."""
    count, forward = 4000, 100.0
    link = Link("even", 0.0, forwards * forward / (count * 1e3) * 1e6, 1.0)
    sizes = [1e3] * count
    assert wait_free(sizes, forward, link) / split(sizes, forward, link) == pytest.approx(gain, rel=2e-3)


def test_groups_hold_every_byte_once_and_keep_to_their_size():
    for model in MODELS:
        groups = fused(model, 25.0)
        assert sum(groups) == pytest.approx(4e6 * model.millions)
        assert max(groups) <= 25e6 or len(groups) == model.tensors
    assert len(FORWARD_MS) > 1


def test_larger_groups_gain_on_a_preempted_network_as_published():
    rows = adagrouper(1).to_json()["rows"]
    best = [max(row[f"{k}F{k}B"] for k in (1, 2, 4, 8)) for row in rows]
    assert best == sorted(best)
    assert 1.0 <= best[0] < 1.04
    assert 1.04 < best[-1] < 1.5


def test_the_command_prints_a_table_or_one_json_document():
    result = CliRunner().invoke(main, ["bench", "paper-dear", "--json"])
    document = json.loads(result.stdout)
    assert document["name"] == "paper-dear"
    assert {"name", "machine", "rows", "units"} <= set(document)
    assert len(document["rows"]) == 2 * len(MODELS)
    text = CliRunner().invoke(main, ["bench", "paper-dear"]).stdout
    assert "BERT-Large" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_an_option_that_a_benchmark_does_not_take_is_refused():
    result = CliRunner().invoke(main, ["bench", "paper-dear", "--ranks", "3"])
    assert result.exit_code == 2
    assert "paper-dear does not take --ranks" in result.output


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ([("GPT", 1, 8, 2.0), ("GPT", 1, 16, 2.0), ("GPT", 2, 8, 2.0)], 3),
        ([(256, 1.0), (4096, 1.0)], 1),
        ([("GPT", 1), ("GPT", 1)], 1),
        ([], 1),
    ],
)
def test_the_keys_of_a_table_tell_its_rows_apart(rows, keys):
    """Where a table is printed in pieces each begins with them."""
    columns = [Column(f"c{number}") for number in range(len(rows[0]) if rows else 2)]
    assert BenchTable("name", "title", columns, rows, []).keys == keys


def test_a_table_survives_its_document():
    document = json.loads(CliRunner().invoke(main, ["bench", "paper-dear", "--json"]).stdout)
    assert BenchTable.from_json(document).to_json() == document
