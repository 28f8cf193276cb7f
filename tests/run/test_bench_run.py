"""Benchmarks between ranks from a plain shell: they start their ranks themselves and print what they measured."""

import json
import os
import subprocess
import time

import pytest
from click.testing import CliRunner
from command import hpcpipe

from hpcpipe.bench.hosts import NETWORK, HostLink, emulated_hosts, missing
from hpcpipe.bench.tenant import Phase, tenant
from hpcpipe.cli import main


def test_a_benchmark_between_ranks_starts_them_and_prints_one_document(tmp_path):
    options = ("--ranks", 2, "--steps", 1, "--json")
    process = hpcpipe("bench", "allreduce", *options, cwd=tmp_path, environment={"XDG_CACHE_HOME": str(tmp_path)})
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert "over 2 ranks" in document["title"]
    assert [row["KiB"] for row in document["rows"]] == [4, 16, 64, 256, 1024, 4096, 16384, 65536]
    assert all(row["ours"] > 0 and row["whole"] > 0 for row in document["rows"])


def _document(tmp_path, name, *options):
    process = hpcpipe("bench", name, *options, "--json", cwd=tmp_path, timeout=110)
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert document["name"] == name
    return document


@pytest.mark.long
def test_schedules_run_beside_their_simulation_and_torch_s_with_the_memory_that_their_caps_allow(tmp_path):
    document = _document(tmp_path, "pipeline", "--ranks", 2, "--steps", 2, "--quick")
    rows = {(row["variability"], row["schedule"]): row for row in document["rows"]}
    assert {name for name, _ in rows} == {"none", "lognormal 0.6", "micro-batch cost 0.8"}
    for (variability, schedule), row in rows.items():
        assert row["run"] > 0 and row["x 1F1B"] > 0
        if schedule != "ready critical":  # its orders follow what was measured
            assert row["in flight"] <= row["stash"] <= 2, (variability, schedule)
    without_messages = (8 + 2 - 1) * 15.0  # (M + S - 1)(F + B); every micro-batch waits for two messages at most
    assert without_messages < rows["none", "fixed 1F1B"]["simulated"] <= without_messages + 8 * 2 * 0.25
    assert ("none", "torch 1F1B") in rows
    assert ("micro-batch cost 0.8", "pyramid, fixed 1F1B") in rows


def test_the_runtime_s_own_time_stands_beside_torch_s(tmp_path):
    document = _document(tmp_path, "overhead", "--ranks", 2, "--steps", 2)
    assert [row["micro-batches"] for row in document["rows"]] == [32, 64]
    for row in document["rows"]:
        assert 0 < row["own CPU"] < row["CPU"], "what is counted is a part of the process's time"
        assert row["torch x"] == pytest.approx(row["torch wall"] / row["wall"])


def test_persistent_receives_stand_beside_plain_ones(tmp_path):
    document = _document(tmp_path, "requests", "--ranks", 2, "--steps", 1)
    assert [row["bytes"] for row in document["rows"]] == [256, 4096, 65536, 1 << 20]
    assert all(row["its CPU"] > 0 and row["plain CPU"] > 0 for row in document["rows"])


@pytest.mark.long
def test_large_messages_cross_slow_links_between_emulated_hosts(tmp_path):
    if (reason := missing()) is not None:
        pytest.skip(reason)
    document = _document(tmp_path, "slow-link", "--steps", 2, "--quick")
    rows = {row["schedule"]: row for row in document["rows"]}
    ours = ["fixed 1F1B", "ready bf, 2x", "ready bfw, 2x", "ready bf, 2x, busy", "the same, no pulse"]
    assert list(rows) == [*ours, "torch 1F1B"]
    assert rows["fixed 1F1B"]["stash"] == 4
    assert all(row["mean"] > 240 for row in rows.values()), "16 micro-batches of 15 ms are that long without any link"


def test_slow_links_are_refused_with_the_reason_where_hosts_cannot_be_made(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    result = CliRunner().invoke(main, ["bench", "slow-link"])
    assert result.exit_code == 3
    assert "cannot be made here: no ip and no tc and no nsenter" in result.stderr


@pytest.mark.long
def test_every_k_and_the_live_choice_run_on_links_that_a_tenant_preempts(tmp_path):
    if (reason := missing()) is not None:
        pytest.skip(reason)
    picture = tmp_path / "course.png"
    options = ("--quick", "--ranks", 2, "--seconds", 2, "--seed", 7, "--plot", picture)
    document = _document(tmp_path, "preempted", *options)
    rows = {(row["phase"], row["system"]): row for row in document["rows"]}
    systems = ["fixed 1F1B", "fixed 2F2B", "fixed 4F4B", "adaptive fixed", "adaptive ready"]
    phases = ["quiet", "light", "heavy", "quiet again"]
    assert list(rows) == [(phase, system) for phase in phases for system in systems]
    for (_, system), row in rows.items():
        assert row["step"] >= (8 + 2 - 1) * 14.4, "(M + S - 1)(F + B) of the largest micro-batches without any message"
        assert row["held"] == pytest.approx(row["in flight"] * 6.144)
        assert row["in flight"] <= 2 * 4, "the memory of 1F1B with micro-batches of 4 on 2 stages"
        if system.startswith("fixed"):
            k = int(system[6])
            assert row["k x b"] == f"{k} x {4 // k}"
    assert picture.stat().st_size > 1000


@pytest.mark.long
def test_a_tenant_fills_a_link_s_queue_up_to_its_window_and_the_link_keeps_to_its_rate(tmp_path):
    if (reason := missing()) is not None:
        pytest.skip(reason)
    window = 100_000
    phases = [Phase("full", 60.0, 1.0, 0.5, window)]
    link = HostLink("80mbit", burst="20kb", latency="500ms", mtu=9000)
    with emulated_hosts(1, link) as hosts:
        shown = hosts.on("h1", ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"])
        with tenant(hosts, phases, seed=0, to=f"{NETWORK}.1", folder=tmp_path, environment=os.environ) as other:
            began, waiting = other.begin(), 0
            while (sent := _queue(shown))["bytes"] < 1_000_000:
                waiting = max(waiting, sent["backlog"])
            seconds = time.monotonic() - began * 1e-9
    assert sent["drops"] == 0
    assert 0 < waiting <= window + 10_000, "a packet more than the window at most"
    assert sent["bytes"] <= 80e6 / 8 * seconds + 20 * 1024 + 9_000, "what the bucket held, and what its rate let pass"


def _queue(shown):
    (queue,) = json.loads(subprocess.run(shown, capture_output=True, text=True, check=True, timeout=20).stdout)
    return queue


@pytest.mark.long
def test_all_ways_to_sum_gradients_run_between_emulated_hosts_beside_what_bounds_them(tmp_path):
    if (reason := missing()) is not None:
        pytest.skip(reason)
    document = _document(tmp_path, "dataparallel", "--steps", 1, "--quick", "--rate", "1gbit")
    rows = {row["way"]: row for row in document["rows"]}
    bounds = ["computing alone", "network alone", "longest chain"]
    ours = ["ours, tensor by tensor", "ours, default", "ours, best"]
    assert set(rows) >= {*bounds, "MPI after", "MPI in backward, best", "torch DDP, default", "torch DDP, best", *ours}
    assert rows["network alone"]["step"] == pytest.approx(6_375_600 * 4 / 125e6 * 1e3), "125 MB/s"
    for way, row in rows.items():
        assert row["step"] > 179, f"{way}: twelve layers compute for 15 ms each"
        assert row["exposed"] == pytest.approx(row["step"] - rows["computing alone"]["step"])


def test_gradients_are_not_summed_at_rates_or_in_models_that_do_not_exist():
    for option, word in (("--rate", "5gbit"), ("--model", "gpt-9")):
        result = CliRunner().invoke(main, ["bench", "dataparallel", option, word])
        assert result.exit_code == 2
        assert f"{word} is not known here; known are" in result.stderr
