"""The batch script as text: what bash makes of its words, and what sizes and options come out of [slurm]."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_text import VALID, faults_of, write_job

from hpcpipe.cluster.environment import World
from hpcpipe.cluster.placement import Seat, judge_gpus, judge_interface, judge_world
from hpcpipe.cluster.render import Submission, UnwritableError, directive, render
from hpcpipe.cluster.submit import dependency
from hpcpipe.job import load_job
from hpcpipe.job.slurm import seconds_of

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Zl", "Zp", "Zs"), include_characters=" "), min_size=1)


def submission(folder: Path, *overrides: str, text: str = VALID, **more: object) -> Submission:
    job_file = write_job(folder, text)
    values = {"job": load_job(job_file, overrides), "job_file": job_file, "folder": folder, "python": Path("/py")}
    return Submission(**{**values, "overrides": overrides, **more})  # type: ignore[arg-type]


def lines_of(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def sbatch_reads(line: str) -> str:
    """Return the value as sbatch reads it, quotes and backslashes as in Slurm's src/sbatch/opt.c, _get_argument."""
    found, quote, escaped = "", "", False
    for char in line.removeprefix("#SBATCH "):
        if escaped:
            found, escaped = found + char, False
        elif char == "\\":
            escaped = True
        elif quote:
            quote, found = ("", found) if char == quote else (quote, found + char)
        elif char in "\"'":
            quote = char
        elif char.isspace():
            break
        else:
            found += char
    return found


@given(PRINTABLE)
def test_sbatch_reads_every_printable_value_as_it_was(value: str) -> None:
    assert sbatch_reads(directive("job-name", value)) == f"--job-name={value}"


@pytest.mark.parametrize("char", ["\n", "\r", "\0", "\x1b", "\x85", "\N{LINE SEPARATOR}", "\udc80"])
def test_no_line_end_or_control_character_gets_into_a_directive(char: str) -> None:
    with pytest.raises(UnwritableError):
        directive("job-name", f"a{char}#SBATCH --uid=0")


def test_bash_gives_srun_the_words_as_they_were(tmp_path: Path) -> None:
    odd = "a  b 'c' \"d\" $HOME `id` $(id) \\ ! * ~ é"
    wanted = submission(
        tmp_path, f"job.name={json.dumps('n', ensure_ascii=False)}", f"slurm.env={{A={json.dumps(odd)}}}"
    )
    script = render(wanted)
    echo = 'srun() { printf "%s\\n" "$@" "$A" >&3; }; ' + script.replace(" &\n", "\n", 1).replace("ranks=$!", "ranks=1")
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&1 >/dev/null 2>&1; {echo}"], capture_output=True, text=True, timeout=30, check=False
    )
    words = done.stdout.splitlines()
    assert words[-1] == odd
    assert words[words.index("run") + 1] == str(wanted.job_file)
    assert f"slurm.env={{A={json.dumps(odd)}}}" in words
    assert "--cpus-per-task=1" in words
    assert "--kill-on-bad-exit=1" in words


STAND_INS = """
sbcast() { cp "$2" "$3"; }
srun() {
  while [[ $1 == --* ]]; do shift; done
  if [[ "$*" == *" run "* ]]; then "$1" >&3; ls "$stage" >&3; else "$@"; fi
}
export SLURM_JOB_ID=7
"""


def test_a_staged_environment_is_packed_unpacked_used_and_removed(tmp_path: Path) -> None:
    """bash runs the script; sbcast copies a file and srun calls its program, as they do on one node."""
    environment, node = tmp_path / "env $x 'y'", tmp_path / "node $x 'z'"
    (environment / "bin").mkdir(parents=True)
    node.mkdir()
    (environment / "bin" / "python").write_text('#!/bin/sh\necho "called by $0"\n')
    (environment / "bin" / "python").chmod(0o755)
    stage_to = f"slurm.stage_to={json.dumps(str(node))}"
    script = render(submission(tmp_path, stage_to, python=environment / "bin" / "python"))
    text = STAND_INS + script.replace(" &\n", "\n", 1).replace("ranks=$!", "ranks=1")
    command = ["bash", "-c", f"exec 3>&1 >/dev/null; {text}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.splitlines() == [f"called by {node}/hpcpipe-7-0/bin/python", "bin"], done.stderr
    assert list(node.iterdir()) == []


def test_an_environment_that_cannot_be_copied_ends_the_job_with_3_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    stage_to = f"slurm.stage_to={json.dumps(str(tmp_path / 'node'))}"
    script = render(submission(tmp_path, stage_to, python=tmp_path / "missing" / "bin" / "python"))
    done = subprocess.run(["bash", "-c", STAND_INS + script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3
    assert "could not be copied" in done.stderr
    assert list((tmp_path / "node").iterdir()) == []


def test_sizes_follow_from_the_mesh_where_they_are_left_out(tmp_path: Path) -> None:
    assert {"--nodes=1", "--ntasks-per-node=2"} <= set(lines_of(render(submission(tmp_path))))
    two = lines_of(render(submission(tmp_path, "slurm.nodes=2")))
    assert {"--nodes=2", "--ntasks-per-node=1"} <= set(two)
    gpus = lines_of(render(submission(tmp_path, "slurm.gpus_per_node=4", "parallel.data=4")))
    assert {"--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"} <= set(gpus)


def test_every_option_of_the_table_is_in_the_script(tmp_path: Path) -> None:
    sets = (
        "slurm.partition='gpu'",
        "slurm.account='m1234'",
        "slurm.qos='debug'",
        "slurm.constraint='gpu&hbm80g'",
        "slurm.time='1-12:00:00'",
        "slurm.signal='TERM@120'",
        "slurm.requeue=false",
        "slurm.modules=['PrgEnv-gnu/8.5.0', 'cray-python']",
        "slurm.extra=['--mem=0', '--exclusive']",
        "slurm.srun_extra=['--network=disable_rdzv_get']",
        "slurm.cpu_bind='cores'",
        "slurm.mpi='pmix'",
        "slurm.broadcast=true",
    )
    script = render(submission(tmp_path, *sets, after=("afterok:7", "afterany:8"), sweep=(("job.seed=1",),)))
    assert {
        "--partition=gpu",
        "--account=m1234",
        "--qos=debug",
        '--constraint="gpu&hbm80g"',
        "--time=1-12:00:00",
        "--signal=TERM@120",
        "--no-requeue",
        "--mem=0",
        "--exclusive",
        "--dependency=afterok:7,afterany:8",
        "--array=0-0",
    } <= set(lines_of(script))
    assert script.startswith("#!/bin/bash -l\n")
    assert "module load PrgEnv-gnu/8.5.0 cray-python\n" in script
    assert "--cpu-bind=cores --network=disable_rdzv_get" in script
    assert "scontrol requeue" not in script
    assert "--broadcast" in script
    assert "sbcast" not in script


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("1:30", 90), ("02:00:00", 7200), ("1-0", 86400), ("1-12:30", 131400), ("2-00:00:01", 172801)],
)
def test_times_are_read_as_the_manual_of_sbatch_lists_them(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize("time", ["", "0", "1h", "1:2:3:4", "-1", "infinite", "1-"])
def test_what_is_no_time_is_none(time: str) -> None:
    assert seconds_of(time) is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("slurm.nodes=3", "3 nodes x 1 rank a node = 3, but [parallel] needs 2 ranks"),
        ("slurm.extra=['--ntasks=9']", "hpcpipe submit sets itself"),
        ("slurm.extra=['touch x']", "no option"),
        ("slurm.stage_to='tmp'", "absolute path"),
        ("slurm.signal='USR1@60'", "NCCL takes SIGUSR1"),
        ("slurm.signal='B:USR2@60'", "batch script alone"),
        ("slurm.signal='USR2@7200'", "as soon as it starts"),
        ("slurm.env={A=1}", "variables hold texts"),
        ("slurm.node=2", "unknown key node"),
    ],
)
def test_faults_of_the_table_say_what_to_do(tmp_path: Path, override: str, said: str) -> None:
    (fault,) = faults_of(write_job(tmp_path), override)
    assert said in fault.message
    assert fault.hint


def test_dependencies_are_written_as_sbatch_reads_them() -> None:
    assert dependency("12") == "afterok:12"
    assert dependency("any:12_3") == "afterany:12_3"
    assert dependency("12; touch x") is None


def test_a_log_folder_with_a_backslash_is_refused_and_a_percent_sign_doubled(tmp_path: Path) -> None:
    with pytest.raises(UnwritableError, match="backslash"):
        render(submission(tmp_path, "job.name='a\\b'"))
    assert f'--output="{tmp_path}/runs/50%% off/slurm-%j.out"' in lines_of(
        render(submission(tmp_path, "job.name='50% off'"))
    )


MPICH = "MPICH Version:      5.0.2\nMPICH configure:    {}\n"
OPEN_MPI = "Open MPI v5.0.11, package: Debian OpenMPI"


@pytest.mark.parametrize(
    ("served", "library", "wrong"),
    [
        ("pmix", MPICH.format("--with-device=ch4:ucx --with-pm=hydra:gforker"), True),
        ("pmix_v4", MPICH.format(""), True),
        ("pmix", MPICH.format("--with-device=ch4:ofi --with-pmix=/usr"), False),
        ("pmix", MPICH.format("--with-pmilib=install --with-pmi=pmix"), False),
        ("pmi2", MPICH.format("--with-device=ch4:ucx"), False),
        ("pmix", "CRAY MPICH version 8.1.30", False),  # it does not tell
        ("pmix", OPEN_MPI, False),
        (None, MPICH.format(""), False),
    ],
)
def test_an_interface_is_refused_only_where_the_library_says_that_it_lacks_it(
    served: str | None, library: str, wrong: bool
) -> None:
    found = judge_interface(served, library)
    assert (found is not None) == wrong
    assert found is None or "--mpi=pmi2" in found


def test_ranks_that_fit_are_not_complained_about(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path))
    assert judge_world(job, World("slurm", 0, 2, 0), size=2) is None
    assert "rank 0 of 1" in str(judge_world(job, World("slurm", 1, 2, 0), size=1))


def _node(*visible: tuple[str, ...], whole: tuple[str, ...] | None = None, on_node: int = 0) -> list[Seat]:
    return [Seat(rank, "n1", rank, gpus, whole, on_node) for rank, gpus in enumerate(visible)]


def test_gpus_that_suffice_pass_also_where_a_cgroup_calls_each_of_them_0() -> None:
    assert judge_gpus(_node(("0", "1"), ("0", "1")), gpus_per_node=2) is None
    assert judge_gpus(_node(("0",), ("1",)), gpus_per_node=2) is None
    assert judge_gpus(_node(("0",), ("0",), whole=("0", "1"), on_node=2), gpus_per_node=2) is None


def test_gpus_that_do_not_suffice_are_named() -> None:
    assert "was given no GPU" in str(judge_gpus(_node((), ()), gpus_per_node=2))
    assert "2 ranks on n1 share 1 GPU (0)" in str(judge_gpus(_node(("0",), ("0",)), gpus_per_node=2))
    assert "ranks 0 and 1 on n1 would both compute on GPU 1" in str(
        judge_gpus(_node(("1",), ("1",), on_node=2), gpus_per_node=2)
    )
    four = [("0", "1")] * 4
    assert "4 ranks on n1 share 2 GPUs (0,1)" in str(judge_gpus(_node(*four), gpus_per_node=4))
