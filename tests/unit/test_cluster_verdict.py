"""From what launchers print, word for word, to the exit code and the sentence that names the dead rank."""

import json
import os
from pathlib import Path

from hpcpipe.cluster.verdict import Ended, judge

RANKS = [{"rank": rank, "pid": 7542 + rank, "host": "n1", "stage": rank} for rank in range(3)]
HYDRA = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID {pid} RUNNING AT n1
=   EXIT CODE: {code}
[mpiexec@n1] Exit codes: [n1] {codes}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {how}
"""


def record(folder: Path, rank: int, *, code: int, reason: str, at: int = 1) -> None:
    (folder / "failures").mkdir(exist_ok=True)
    path = folder / "failures" / f"rank_{rank:05d}.json"
    path.write_text(
        json.dumps({"rank": rank, "stage": rank, "host": "n1", "pid": 1, "exit_code": code, "reason": reason})
    )
    os.utime(path, ns=(at, at))


def test_a_launcher_that_ends_well_means_success(tmp_path: Path) -> None:
    assert judge(Ended(0, ""), tmp_path) == (0, "")


def test_what_a_rank_recorded_first_is_the_reason_and_its_exit_code_wins(tmp_path: Path) -> None:
    record(tmp_path, 0, code=4, reason="Traceback: the peer is gone", at=2)
    record(tmp_path, 2, code=6, reason="Traceback: hung", at=1)
    assert judge(Ended(9, "rank 2 failed\nTraceback: hung\n", deaths=(0,)), tmp_path) == (6, "")
    assert judge(Ended(0, "Traceback: hung\n"), tmp_path) == (6, "")


def test_what_a_rank_recorded_but_could_not_print_any_more_is_printed_for_it(tmp_path: Path) -> None:
    record(tmp_path, 2, code=4, reason="rank 2 (stage 2) on n1 died (process 7); the job ends on all ranks")
    code, sentence = judge(Ended(7, "", ranks=RANKS), tmp_path)
    assert code == 4
    assert sentence == "rank 2 (stage 2) on n1 died (process 7); the job ends on all ranks"
    record(tmp_path, 2, code=4, reason="Traceback (most recent call last):\nArithmeticError: told to fail")
    _, sentence = judge(Ended(4, "", ranks=RANKS), tmp_path)
    assert sentence.startswith("rank 2")
    assert sentence.endswith("ArithmeticError: told to fail")


def test_a_damaged_record_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "rank_00000.json").write_text('{"rank": 0, "exit')
    code, sentence = judge(Ended(9, "", ranks=RANKS), tmp_path)
    assert code == 4
    assert sentence


def test_an_exit_code_on_which_all_ranks_agree_passes(tmp_path: Path) -> None:
    assert judge(Ended(5, "[mpiexec@n1] Exit codes: [n1] 1280,1280,1280\n"), tmp_path) == (5, "")
    assert judge(Ended(75, ""), tmp_path) == (75, "")


def test_one_rank_with_such_an_exit_code_is_a_rank_that_failed(tmp_path: Path) -> None:
    code, sentence = judge(Ended(3, "[mpiexec@n1] Exit codes: [n1] 0,768,9\n", ranks=RANKS), tmp_path)
    assert code == 4
    assert sentence.startswith("rank 1 (stage 1) on n1 ended with exit code 3; the job ends on all ranks; ")
    assert str(tmp_path) in sentence


def test_a_signal_of_its_own_tells_the_culprit_from_those_that_the_launcher_killed(tmp_path: Path) -> None:
    said = HYDRA.format(pid=7542, code=9, codes="9,9,11", how="Segmentation fault (signal 11)")
    _, sentence = judge(Ended(11, said, ranks=RANKS), tmp_path)
    assert sentence.startswith("rank 2 (stage 2) on n1 was killed by signal 11 (SIGSEGV)")


def test_among_killed_ranks_the_first_to_die_is_the_culprit(tmp_path: Path) -> None:
    said = HYDRA.format(pid=7542, code=9, codes="9,9,9", how="Killed (signal 9)")
    _, sentence = judge(Ended(9, said, deaths=(2, 0, 1), ranks=RANKS), tmp_path)
    assert sentence.startswith("rank 2 (stage 2) on n1 was killed by signal 9 (SIGKILL), as the kernel does")


def test_killed_ranks_that_were_found_dead_at_the_same_moment_are_all_named(tmp_path: Path) -> None:
    said = HYDRA.format(pid=7542, code=9, codes="9,9,9", how="Killed (signal 9)")
    _, sentence = judge(Ended(9, said, deaths=(1, 2, 0), ranks=RANKS, tied=(1, 2)), tmp_path)
    assert sentence.startswith("rank 1 (stage 1) on n1 or rank 2 (stage 2) on n1 was killed by signal 9 (SIGKILL)")
    said = HYDRA.format(pid=7542, code=9, codes="9,9,11", how="Segmentation fault (signal 11)")
    _, sentence = judge(Ended(11, said, deaths=(1, 2, 0), ranks=RANKS, tied=(1, 2)), tmp_path)
    assert sentence.startswith("rank 2 (stage 2) on n1 was killed by signal 11 (SIGSEGV)"), "its own signal tells"


def test_without_other_witnesses_the_launchers_process_id_names_the_rank(tmp_path: Path) -> None:
    said = HYDRA.format(pid=7543, code=9, codes="", how="Killed (signal 9)")
    _, sentence = judge(Ended(9, said, ranks=RANKS), tmp_path)
    assert sentence.startswith("rank 1 (stage 1) on n1 was killed by signal 9")


def test_open_mpi_names_the_rank_itself(tmp_path: Path) -> None:
    said = "prterun noticed that process rank 1 with PID 123 on node n1 exited on\nsignal 9 (Killed)."
    assert judge(Ended(137, said), tmp_path)[1].startswith("rank 1 was killed by signal 9 (SIGKILL)")
    said = "  Process name: [prterun-n1-123@1,2]\n  Exit code:    4\n"
    assert judge(Ended(4, said), tmp_path)[1].startswith("rank 2 ended with exit code 4")
    said = "  Process name: [[35129,1],2]\n  Exit code:    4\n"
    assert judge(Ended(4, said), tmp_path)[1].startswith("rank 2 ended with exit code 4")


def test_a_rank_that_aborts_without_a_record_failed_whatever_its_code(tmp_path: Path) -> None:
    said = "Abort(5) on node 2 (rank 0 in comm 496): application called MPI_Abort(comm=0x84000001, 5) - process 0"
    code, sentence = judge(Ended(5, said, ranks=RANKS), tmp_path)
    assert code == 4
    assert sentence.startswith("rank 2 (stage 2) on n1 called MPI_Abort with code 5")
    said = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[38809,1],1]\n  Errorcode: 5\n"
    code, sentence = judge(Ended(5, said, ranks=RANKS), tmp_path)
    assert code == 4
    assert sentence.startswith("rank 1 (stage 1) on n1 called MPI_Abort with code 5")


def test_a_death_before_the_ranks_met_is_said_to_be_one(tmp_path: Path) -> None:
    _, sentence = judge(Ended(255, ""), tmp_path)
    assert sentence.startswith("a rank, before all ranks had met, ended with exit code 255")


def test_a_killed_launcher_is_named(tmp_path: Path) -> None:
    code, sentence = judge(Ended(-9, ""), tmp_path)
    assert code == 4
    assert sentence.startswith("the launcher mpiexec was killed by signal 9 (SIGKILL)")


def test_an_interrupted_run_ends_as_shells_expect_without_blaming_a_rank(tmp_path: Path) -> None:
    assert judge(Ended(1, "", interrupted=2), tmp_path) == (130, "")
    assert judge(Ended(-15, "", interrupted=15), tmp_path) == (143, "")
    assert judge(Ended(75, "", interrupted=15), tmp_path) == (75, "")


def test_the_signal_of_a_death_that_others_recorded_is_added(tmp_path: Path) -> None:
    record(tmp_path, 1, code=4, reason="rank 1 (stage 1) on n1 died (process 7543); the job ends on all ranks")
    said = HYDRA.format(pid=7543, code=9, codes="1024,9,1024", how="Killed (signal 9)")
    code, sentence = judge(Ended(9, said, deaths=(1, 0, 2), ranks=RANKS), tmp_path)
    assert code == 4
    assert sentence.startswith("rank 1 was killed by signal 9 (SIGKILL)")
