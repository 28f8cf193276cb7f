"""A training with checkpoints goes on by itself, whatever ends its start: one history, and no bit is another one."""

import pytest
import training
from stories import end_of, story
from training import STEPS

pytestmark = pytest.mark.timeout(400)


@story
def told_to_stop_in_three_ways(it):
    training.begin(it, STEPS, 'slurm.extra=["--nodelist=n29,n30", "--exclusive"]')
    it.do("scancel", "--signal=USR2")
    it.wait_for_steps(restart=1)
    it.do("scontrol", "requeue")
    it.wait_for_steps(restart=2)
    words = ("-p", "urgent", "--nodelist=n29", "--exclusive", "-n1", "--wrap", "sleep 1")
    it.cluster.sbatch(*words, cwd=it.folder)
    return training.end(it, STEPS)


@end_of("told_to_stop_in_three_ways")
def test_a_signal_a_requeue_and_a_preemption_cost_no_step_and_change_no_bit(it):
    training.check(it, restarts=3)
    for start in it.starts[1:]:
        assert f"stopped on all ranks after step {start['first_step']} of {STEPS}" in it.log
        assert f"goes on after step {start['first_step']} of " in it.log


@story
def out_of_time(it):
    # Slurm looks at limits twice a minute and sends the signal of a one-minute job in its first 35 s.
    training.begin(it, STEPS, 'slurm.time="1"', 'slurm.signal="USR2@55"', step_s=0.4)
    return training.end(it, STEPS)


@end_of("out_of_time")
def test_a_training_longer_than_its_time_limit_goes_on_until_it_is_done(it):
    training.check(it, restarts=int(it.Restarts))
    assert int(it.Restarts) >= 1
    assert "DUE TO TIME LIMIT" not in it.log


@story
def twenty_preemptions(it):
    training.begin(it, 1000, step_s=0.02)
    for restart in range(20):
        it.wait_for_steps(restart=restart)
        it.do(*(("scontrol", "requeue") if restart % 2 else ("scancel", "--signal=USR2")))
    return training.end(it, 1000)


@pytest.mark.long
@pytest.mark.timeout(900)
@end_of("twenty_preemptions")
def test_twenty_preemptions_in_a_row_end_with_the_bits_of_an_undisturbed_run(it):
    training.check(it, restarts=20)
