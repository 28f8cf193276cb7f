"""Signals, time limit, preemption, lost nodes: the ranks stop together as a step ends and Slurm starts them anew."""

import json
import time

import pytest
from stories import Story, end_of, story

pytestmark = pytest.mark.timeout(300)


@story
def signal_to_the_ranks(it):
    it.start()
    it.do("scancel", "--signal=USR2")
    it.wait_for_steps(restart=1)


@story
def termination_of_the_ranks(it):
    it.start()
    it.do("scancel", "--signal=TERM")
    it.wait_for_steps(restart=1)


@story
def signal_to_the_script(it):
    it.start()
    it.do("scancel", "--batch", "--signal=USR2")
    it.wait_for_steps(restart=1)


@end_of("signal_to_the_ranks", "termination_of_the_ranks", "signal_to_the_script")
def test_a_signal_stops_all_ranks_after_a_step_and_the_job_starts_again(it):
    assert it.Restarts == "1"
    assert it.steps == list(range(len(it.steps)))
    assert it.log.count(f"stopped on all ranks after step {len(it.steps)} of 1000000 by") == 1
    assert it.latest == "1"


@story
def signal_to_the_last_rank(it):
    it.start("slurm.requeue=false")
    ranks = json.loads((it.runs / f"{it.job_id}-0" / "ranks.json").read_text())
    it.cluster.run("kill", "-USR2", max(ranks, key=lambda entry: entry["rank"])["pid"])
    it.cluster.wait_for_end(it.job_id)


@end_of("signal_to_the_last_rank")
def test_a_signal_to_one_rank_stops_all_and_the_job_ends_with_75_where_it_may_not_go_back(it):
    assert (it.ExitCode, it.Restarts) == ("75:0", "0")
    assert it.log.count("stopped on all ranks") == 1


@story
def two_signals(it):
    it.start("slurm.requeue=false", "device.forward_ms=[4000, 5]")
    it.do("scancel", "--signal=USR2")
    time.sleep(1.5)  # within a second they count as one
    it.do("scancel", "--signal=USR2")
    it.cluster.wait_for_end(it.job_id)


@end_of("two_signals")
def test_a_second_signal_ends_the_job_within_the_step(it):
    assert it.JobState == "FAILED"
    assert "got a second signal" in it.log
    assert "stopped on all ranks" not in it.log


@story
def restarts_used_up(it):
    it.start("slurm.max_restarts=1")
    it.do("scancel", "--signal=USR2")
    it.wait_for_steps(restart=1)
    it.do("scancel", "--signal=USR2")
    it.cluster.wait_for_end(it.job_id)


@end_of("restarts_used_up")
def test_a_job_is_not_requeued_more_often_than_it_may(it):
    assert (it.ExitCode, it.Restarts) == ("75:0", "1")


@story
def cancelled(it):
    it.start()
    it.do("scancel")
    it.cluster.wait_for_end(it.job_id)
    deadline = time.monotonic() + 20
    while "stopped on all ranks" not in it.log and time.monotonic() < deadline:
        time.sleep(0.2)


@end_of("cancelled")
def test_a_cancelled_job_stays_cancelled_and_its_ranks_end_in_order(it):
    assert (it.JobState, it.Restarts) == ("CANCELLED", "0")
    assert "stopped on all ranks" in it.log


@story
def requeued_by_hand(it):
    it.start()
    it.do("scontrol", "requeue")
    it.wait_for_steps(restart=1)


@end_of("requeued_by_hand")
def test_a_requeue_by_hand_stops_the_ranks_in_order_and_counts_once(it):
    assert it.Restarts == "1"
    assert "stopped on all ranks" in it.log


@story
def preempted(it):
    it.start('slurm.extra=["--nodelist=n31,n32", "--exclusive"]')
    words = ("-p", "urgent", "--nodelist=n31", "--exclusive", "-n1", "--wrap", "sleep 1")
    urgent = it.cluster.sbatch(*words, cwd=it.folder)
    assert it.cluster.wait_for_end(urgent)["JobState"] == "COMPLETED"
    it.wait_for_steps(restart=1)


@end_of("preempted")
def test_a_preempted_job_gives_way_and_comes_back(it):
    assert it.Restarts == "1"
    assert "stopped on all ranks" in it.log


@story
def near_the_time_limit(it):
    it.start('slurm.time="1"', 'slurm.signal="USR2@55"')
    it.wait_for_steps(restart=1)


@end_of("near_the_time_limit")
def test_the_signal_before_the_time_limit_stops_and_requeues(it):
    assert it.Restarts == "1"
    assert "stopped on all ranks" in it.log
    assert "DUE TO TIME LIMIT" not in it.log


@pytest.mark.long  # until KillWait is over; in the usual tests a whole host dies (test_hosts.py)
def test_a_node_that_dies_ends_this_start_of_the_job_and_the_next_one_runs_elsewhere(cluster, tmp_path):
    it = Story(cluster, tmp_path)
    it.start('slurm.extra=["--exclusive"]')  # the stories' jobs are to keep their nodes
    nodes = cluster.run("scontrol", "show", "hostnames", it.state()["NodeList"]).stdout.split()
    cluster.stop_node(nodes[1])  # the other one has the batch script
    cluster.run("scontrol", "update", f"NodeName={nodes[1]}", "State=DOWN", "Reason=test")
    try:
        it.wait_for_steps(restart=1)
        now = cluster.run("scontrol", "show", "hostnames", it.state()["NodeList"]).stdout.split()
        assert nodes[1] not in now
        assert it.state()["Restarts"] == "1"
    finally:
        it.end()
        cluster.start_node(nodes[1])
        cluster.run("scontrol", "update", f"NodeName={nodes[1]}", "State=RESUME")
