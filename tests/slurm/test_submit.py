"""`hpcpipe submit` on a real Slurm: what it makes of names; arrays, chains, waiting; what it refuses."""

import json
import tomllib

import pytest
from slurm_jobs import real

NASTY = "a  b \"q\" 'x' $HOME $(touch pwned) `touch pwned` ; touch pwned # %j %% é 日本 &|<>*?[~!{,}"
QUIET = ("--set", "job.steps=1")


def _name(text):
    return f"job.name={json.dumps(text, ensure_ascii=False)}"


def test_a_job_runs_and_its_log_and_run_directory_are_where_submit_says(cluster, hpcpipe, job_file, tmp_path):
    done = hpcpipe("submit", job_file, "--wait")
    job_id = done.stdout.splitlines()[0]
    assert "step 2/2" in done.stdout
    assert f"job {job_id} is completed" in done.stderr
    log = tmp_path / "runs" / "small" / f"slurm-{job_id}.out"
    assert str(log) in done.stderr
    assert "step 2/2" in log.read_text()
    run = tmp_path / "runs" / "small" / f"{job_id}-0"
    ranks = json.loads((run / "ranks.json").read_text())
    assert len(ranks) == 2
    assert cluster.job(job_id)["NumNodes"] == "2"


def test_no_name_path_or_value_gets_out_of_its_quotes(cluster, hpcpipe, job_file, tmp_path):
    folder = tmp_path / NASTY
    folder.mkdir()
    nasty_file = folder / f"{NASTY}.toml"
    odd = json.dumps(NASTY, ensure_ascii=False)
    text = job_file.read_text().replace("[slurm]", f"[slurm]\nenv = {{ ODD = {odd} }}")
    text = text.replace("[slurm]", '[slurm]\nprologue = [\'printf %s "$ODD" > odd.txt\']\nextra = ["--comment=x # y"]')
    nasty_file.write_text(text.replace('name = "small"\n', ""), encoding="utf-8")
    done = hpcpipe("submit", nasty_file, "--wait", cwd=folder)
    job_id = done.stdout.splitlines()[0]
    run = folder / "runs" / NASTY / f"{job_id}-0"
    assert tomllib.loads((run / "job.toml").read_text())["job"]["name"] == NASTY
    assert (folder / "odd.txt").read_text() == NASTY
    assert f"JobName={NASTY}" in cluster.run("scontrol", "show", "job", job_id).stdout
    assert "Comment=x # y" in cluster.run("scontrol", "show", "job", job_id).stdout
    assert (folder / "runs" / NASTY / f"slurm-{job_id}.out").exists()
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("char", ["\n", "\r", "\0", "\x1b"])
def test_line_ends_and_control_characters_are_refused_with_their_places(hpcpipe, job_file, char):
    value = json.dumps(f"--a=x{char}touch pwned")
    sets = (f"job.name={value}", f"slurm.account={value}", f"slurm.env={{ A = {value} }}", f"slurm.extra=[{value}]")
    done = hpcpipe("submit", job_file, "--dry-run", *(word for one in sets for word in ("--set", one)), check=False)
    assert done.returncode == 2
    assert [f"the {place} --set" in done.stderr for place in ("1st", "2nd", "3rd", "4th")] == [True] * 4, done.stderr
    assert done.stdout == ""


def test_a_working_folder_with_a_line_end_is_refused(hpcpipe, job_file, tmp_path):
    folder = tmp_path / "a\nb"
    folder.mkdir()
    done = hpcpipe("submit", job_file, "--dry-run", check=False, cwd=folder)
    assert done.returncode == 2
    assert "'\\n'" in done.stderr


def test_a_dry_run_prints_a_script_that_slurm_accepts_and_writes_nothing(cluster, hpcpipe, job_file, tmp_path):
    before = set(tmp_path.iterdir())
    done = hpcpipe("submit", job_file, "--dry-run", "--set", _name(NASTY))
    assert set(tmp_path.iterdir()) == before
    script = tmp_path / "script.sh"
    script.write_text(done.stdout, encoding="utf-8")
    assert "to start at" in cluster.run("sbatch", "--test-only", script, cwd=tmp_path).stderr
    cluster.run("bash", "-n", script)


def test_a_sweep_is_a_job_array_whose_elements_have_directories_of_their_own(cluster, hpcpipe, job_file, tmp_path):
    sweep = ("--sweep", "job.seed=3,4", "--sweep", "schedule.in_flight=[2, 1]")
    done = hpcpipe("submit", job_file, *sweep, *QUIET, "--wait")
    job_id = done.stdout.splitlines()[0]
    seeds = {
        run.name: tomllib.loads((run / "job.toml").read_text())["job"]["seed"]
        for run in (tmp_path / "runs" / "small").glob(f"{job_id}_*-0")
    }
    assert seeds == {f"{job_id}_0-0": 3, f"{job_id}_1-0": 4}
    assert {path.name for path in (tmp_path / "runs" / "small").glob("*.out")} == {
        f"slurm-{job_id}_0.out",
        f"slurm-{job_id}_1.out",
    }


def test_a_dependent_job_starts_after_a_good_one_and_is_dropped_after_a_bad_one(cluster, hpcpipe, job_file):
    good = hpcpipe("submit", job_file, *QUIET).stdout.strip()
    second = hpcpipe("submit", job_file, *QUIET, "--after", good).stdout.strip()
    bad = hpcpipe("submit", job_file, "--set", 'slurm.prologue=["exit 9"]').stdout.strip()
    dropped = hpcpipe("submit", job_file, *QUIET, "--after", bad).stdout.strip()
    anyway = hpcpipe("submit", job_file, *QUIET, "--after", f"any:{bad}").stdout.strip()
    assert cluster.wait_for_end(second)["JobState"] == "COMPLETED"
    first = cluster.job(good)
    assert first["JobState"] == "COMPLETED"
    assert first["EndTime"] <= cluster.job(second)["StartTime"]
    assert cluster.wait_for_end(bad)["ExitCode"] == "9:0"
    assert cluster.wait_for_end(dropped)["JobState"] == "CANCELLED"
    assert cluster.wait_for_end(anyway)["JobState"] == "COMPLETED"


def test_waiting_ends_with_the_job_s_exit_code_and_shows_why(hpcpipe, job_file):
    job_file.write_text(real())
    done = hpcpipe("submit", job_file, "--wait", "--set", "optimizer.lr=1e30", "--set", "job.steps=30", check=False)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "stopped on all ranks; try a smaller lr" in done.stdout


REFUSED = {
    "nodes that hold other ranks than the mesh": (("slurm.nodes=3",), "3 nodes"),
    "ranks of a node that do not divide": (("slurm.ranks_per_node=3", 'slurm.nodes="auto"'), "3"),
    "more ranks than GPUs": (("slurm.gpus_per_node=1", "slurm.nodes=1", "slurm.ranks_per_node=2"), "1 GPU"),
    "the signal that NCCL takes": (("slurm.signal='USR1@60'",), "NCCL"),
    "a signal before the job starts": (("slurm.signal='USR2@1200'",), "20:00"),
    "a time that is none": (("slurm.time='1h'",), "hours:minutes:seconds"),
    "an option that another key sets": (("slurm.extra=['--nodes=5']",), "nodes"),
    "shell in a module's name": (("slurm.modules=['gcc; touch pwned']",), "module"),
    "shell in a variable's name": (("slurm.env={ 'A;touch pwned' = 'x' }",), "variable"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused_before_slurm_is_asked(cluster, hpcpipe, job_file, tmp_path, case):
    overrides, named = REFUSED[case]
    before = cluster.run("squeue", "-h", "-t", "all").stdout.count("\n")
    done = hpcpipe("submit", job_file, *(w for o in overrides for w in ("--set", o)), check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert named in done.stderr
    assert cluster.run("squeue", "-h", "-t", "all").stdout.count("\n") == before


def test_what_slurm_refuses_is_said_in_its_words(hpcpipe, job_file):
    done = hpcpipe("submit", job_file, "--set", "slurm.partition='nowhere'", check=False)
    assert done.returncode == 3
    assert "invalid partition" in done.stderr
    assert "Traceback" not in done.stderr
