"""What launchers and Slurm say: variables as Hydra and Open MPI set them, and as the manual of Slurm lists them."""

from hpcpipe.cluster.environment import World, child_environment, job_id, restart_count, world

BATCH_SCRIPT = {
    "SLURM_JOB_ID": "12345",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_TASK_PID": "4711",
    "SLURM_GTIDS": "0",
}
STEP = BATCH_SCRIPT | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_SRUN_COMM_PORT": "40123",
}


def test_a_plain_shell_gives_no_rank() -> None:
    assert world({}) is None
    assert world({"PATH": "/bin"}) is None


def test_the_script_of_a_batch_job_counts_as_started_plainly() -> None:
    assert world(BATCH_SCRIPT) is None


def test_the_shell_of_an_allocation_counts_as_started_plainly() -> None:
    shell = STEP | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    assert world(shell) is None


def test_a_task_of_srun_has_its_rank_whatever_interface_it_speaks() -> None:
    assert world(STEP) == World("slurm", 3, 4, 1)
    assert world(STEP | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"}) == World("slurm", 3, 4, 1)
    assert world(STEP | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.1.0"}) == World("slurm", 3, 4, 1)


def test_a_rank_of_mpiexec_has_its_rank_inside_a_batch_job_too() -> None:
    hydra = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
    assert world(hydra) == World("mpich", 1, 4, 1)
    assert world(BATCH_SCRIPT | hydra) == World("mpich", 1, 4, 1)
    openmpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert world(BATCH_SCRIPT | openmpi) == World("openmpi", 2, 4, 0)


def test_ranks_of_an_mpiexec_that_starts_its_helpers_by_srun_are_not_taken_for_srun_s() -> None:
    helper = STEP | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "5", "PMI_SIZE": "8"}
    assert world(helper) == World("mpich", 5, 8, None)


def test_variables_that_are_not_numbers_give_no_rank() -> None:
    assert world({"PMI_RANK": "", "PMI_SIZE": "many"}) is None


def test_a_job_s_id_that_is_no_number_is_none_and_leads_out_of_no_folder() -> None:
    assert job_id({"SLURM_JOB_ID": "../12345"}) is None
    assert job_id({"SLURM_JOB_ID": "12345", "SLURM_ARRAY_JOB_ID": "..", "SLURM_ARRAY_TASK_ID": "7"}) == "12345"


def test_the_job_s_id_names_the_element_of_an_array() -> None:
    assert job_id({}) is None
    assert job_id({"SLURM_JOB_ID": "12345"}) == "12345"
    array = {"SLURM_JOB_ID": "12352", "SLURM_ARRAY_JOB_ID": "12345", "SLURM_ARRAY_TASK_ID": "7"}
    assert job_id(array) == "12345_7"


def test_restarts_are_counted_from_none() -> None:
    assert restart_count({}) == 0
    assert restart_count({"SLURM_RESTART_COUNT": "2"}) == 2


def test_a_child_keeps_the_allocation_and_the_user_s_settings_but_not_the_parent_s_place() -> None:
    settings = {"OMPI_MCA_btl": "tcp,self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "SLURM_JOB_ID": "12345", "HOME": "/root"}
    places = {
        "PMI_RANK": "3",
        "PMI_FD": "9",
        "PMIX_RANK": "3",
        "OMPI_COMM_WORLD_RANK": "3",
        "MPI_LOCALRANKID": "1",
        "HYDI_CONTROL_FD": "7",
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PMIX_MAPPING_SERV": "x",
    }
    assert child_environment(settings | places) == settings
    assert world(child_environment(STEP)) is None
