"""From a job to the text of its batch script: a pure function, with every value quoted for whoever reads it.

Two readers have two grammars: the shell, and sbatch, which reads the lines that start with #SBATCH. It must not know
how scripts are submitted (submit.py).
"""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from hpcpipe.cluster.environment import EXIT_CODE_FILE
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import Job


@dataclass(frozen=True, slots=True)
class Submission:
    """What a batch script is made of.

    `folder` is where the job works, `python` the interpreter that has hpcpipe, `sweep` one tuple of overrides for each
    element of the job array (empty: no array), `after` the dependencies as sbatch writes them.
    """

    job: Job
    job_file: Path
    folder: Path
    python: Path
    overrides: tuple[str, ...] = ()
    sweep: tuple[tuple[str, ...], ...] = ()
    after: tuple[str, ...] = ()
    run_dir: Path | None = None
    quiet: bool = False

    @property
    def environment(self) -> Path:
        """The folder of the Python environment that has hpcpipe."""
        return self.python.parent.parent

    @property
    def log(self) -> Path:
        """The log's path, with Slurm's patterns for the job's number in its last part."""
        number = "%A_%a" if self.sweep else "%j"
        return self.log_folder / f"slurm-{number}.out"

    @property
    def log_folder(self) -> Path:
        """Where the log goes, which must exist before the job starts."""
        return self.folder / self.job.run.run_dir / self.job.run.name


class UnwritableError(ValueError):
    """A value that no batch script can hold; the message says which and why."""


def render(wanted: Submission) -> str:
    """Return the batch script.

    Raises
    ------
    UnwritableError
        A path holds a line end, or the log's path a backslash.
    """
    parts = [*_directives(wanted), "", *_setting_up(wanted), *_run(wanted), *_ending(wanted)]
    return "\n".join(parts) + "\n"


def directive(name: str, value: str | int) -> str:
    """Return a line that sbatch reads: in double quotes, in which it knows the backslash and nothing else."""
    text = str(value)
    _check(text, f"--{name}")
    if not text or any(not (c.isascii() and (c.isalnum() or c in "-_.,:@%/+=")) for c in text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={text}"


def _directives(wanted: Submission) -> list[str]:
    job, slurm = wanted.job, wanted.job.slurm
    nodes, per_node = slurm.sizes(job.parallel.ranks)
    log_folder, log_name = str(wanted.log_folder), wanted.log.name
    if "\\" in log_folder:
        raise UnwritableError(f"the log's folder {log_folder} holds a backslash, which Slurm does not read as one")
    lines = ["#!/bin/bash -l" if slurm.modules else "#!/bin/bash"]
    lines += [
        directive("job-name", job.run.name),
        directive("chdir", str(wanted.folder)),
        directive("output", f"{log_folder.replace('%', '%%')}/{log_name}"),
        directive("open-mode", "append"),
        directive("nodes", nodes),
        directive("ntasks-per-node", per_node),
        directive("cpus-per-task", slurm.cpus_per_rank),
    ]
    if slurm.gpus_per_node:
        lines.append(directive("gpus-per-node", slurm.gpus_per_node))
    lines.append(directive("time", slurm.time))
    lines += [
        directive(name, value)
        for name in ("partition", "account", "qos", "constraint")
        if (value := getattr(slurm, name))
    ]
    if slurm.signal:
        lines.append(directive("signal", slurm.signal))
    lines.append("#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue")
    if wanted.sweep:
        lines.append(directive("array", f"0-{len(wanted.sweep) - 1}"))
    if wanted.after:
        lines += [directive("dependency", ",".join(wanted.after)), directive("kill-on-invalid-dep", "yes")]
    for option in slurm.extra:
        name, equals, value = option.lstrip("-").partition("=")
        lines.append(directive(name, value) if equals else f"#SBATCH {'-' if len(name) == 1 else '--'}{name}")
    return lines


def _setting_up(wanted: Submission) -> list[str]:
    slurm = wanted.job.slurm
    lines = [f"module load {' '.join(map(quote, slurm.modules))}"] if slurm.modules else []
    lines += [f"export {name}={quote(value)}" for name, value in slurm.env.items()]
    if slurm.prologue:
        lines += ["# from [slurm] prologue, as written there", *slurm.prologue]
    lines += ["unset SLURM_EXPORT_ENV  # under sbatch --export=NONE the ranks still get what is set here", ""]
    return [*lines, "set -euo pipefail", ""]


def _run(wanted: Submission) -> list[str]:
    job, slurm = wanted.job, wanted.job.slurm
    nodes, per_node = slurm.sizes(job.parallel.ranks)
    # srun has not inherited --cpus-per-task since Slurm 22.05, so its line says everything.
    srun = [f"--nodes={nodes}", f"--ntasks={nodes * per_node}", f"--ntasks-per-node={per_node}"]
    srun += [f"--cpus-per-task={slurm.cpus_per_rank}", "--kill-on-bad-exit=1"]
    srun += [f"--mpi={slurm.mpi}"] if slurm.mpi else []
    srun += [f"--cpu-bind={slurm.cpu_bind}"] if slurm.cpu_bind else []
    srun += [f"--gpu-bind={slurm.gpu_bind}"] if slurm.gpus_per_node and slurm.gpu_bind else []
    srun += slurm.srun_extra
    program = ["-m", "hpcpipe", "run", str(wanted.job_file)]
    program += [word for override in wanted.overrides for word in ("--set", override)]
    program += ["--run-dir", str(wanted.run_dir)] if wanted.run_dir else []
    program += ["--quiet"] if wanted.quiet else []
    program += ["--broadcast"] if slurm.broadcast else []
    for word in (str(wanted.python), *program):
        _check(word, "the command line")
    python = '"$stage/bin/python"' if slurm.stage_to else quote(str(wanted.python))
    lines = _staging(wanted) if slurm.stage_to else []
    if wanted.sweep:
        lines.append('case "$SLURM_ARRAY_TASK_ID" in')
        for number, overrides in enumerate(wanted.sweep):
            words = " ".join(f"--set {_word(override)}" for override in overrides)
            lines.append(f"  {number}) sweep=({words}) ;;")
        lines += ["esac", ""]
    lines += [
        f"{EXIT_CODE_FILE}=$(mktemp)  # where rank 0 says how it all ended",
        f"export {EXIT_CODE_FILE}",
        "ended_by_slurm=",
        f"srun {' '.join(map(quote, srun))} \\",
        f"  {python} {' '.join(map(quote, program))}" + (' "${sweep[@]}"' if wanted.sweep else "") + " &",
        "ranks=$!",
        "trap 'ended_by_slurm=yes' TERM  # the ranks get it too; stay until they have ended",
        "trap 'kill -USR2 \"$ranks\"' USR2",
    ]
    return lines


def _staging(wanted: Submission) -> list[str]:
    """Return what copies the environment to every node: read once, sent by Slurm, unpacked by each for itself."""
    nodes, _ = wanted.job.slurm.sizes(wanted.job.parallel.ranks)
    each = f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --mpi=none"
    folder = wanted.environment
    _check(str(folder), "the environment's path")
    unpack = 'mkdir -p "$1" && tar -C "$1" -xf "$1.tar" && rm "$1.tar"'
    return [
        f"stage={quote(wanted.job.slurm.stage_to.rstrip('/'))}/hpcpipe-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}",
        f'trap \'{each} rm -rf "$stage" "$stage.tar" "$stage.here.tar"\' EXIT',
        "# shellcheck disable=SC2016  # the shell of each node expands $1",
        f'if ! {{ tar -C {quote(str(folder))} -cf "$stage.here.tar" . &&',
        '  sbcast --force "$stage.here.tar" "$stage.tar" &&',
        f'  {each} bash -c {quote(unpack)} unpack "$stage"; }}; then',
        '  echo "hpcpipe: the environment could not be copied to $stage on every node; see [slurm] stage_to" >&2',
        f"  exit {int(ExitCode.ENVIRONMENT)}",
        "fi",
        f'echo "hpcpipe: {nodes} nodes have their own copies of the environment in $stage"',
        "",
    ]


def _ending(wanted: Submission) -> list[str]:
    slurm = wanted.job.slurm
    lines = [
        'code=0; wait "$ranks" || code=$?',
        'while ((code > 128)) && kill -0 "$ranks" 2>/dev/null; do  # a signal has interrupted the waiting',
        '  code=0; wait "$ranks" || code=$?',
        "done",
        f'said=$(<"${EXIT_CODE_FILE}")',
        "if [[ $said == [0-9]* ]]; then",
        "  code=$said",
        "elif [[ -z $said ]] && ((code == 140)); then  # SIGUSR2 before the ranks could catch it: nothing is lost",
        f"  code={int(ExitCode.REQUEUE)}",
        "elif ((code != 0)); then",
        '  echo "hpcpipe: the ranks ended without agreeing on an exit code (srun says $code); see above." >&2',
        '  echo "hpcpipe: If MPI did not start, call hpcpipe doctor by the same srun line: it says what to do" >&2',
        "fi",
        f'rm -f "${EXIT_CODE_FILE}"',
    ]
    if slurm.requeue:
        lines += [
            "",
            f"if ((code == {ExitCode.REQUEUE})) && [[ -z $ended_by_slurm ]] && "
            f"((${{SLURM_RESTART_COUNT:-0}} < {slurm.max_restarts})); then",
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
        ]
    return [*lines, 'exit "$code"']


def _word(text: str) -> str:
    _check(text, "--sweep")
    return quote(text)


def _check(text: str, where: str) -> None:
    odd = next((c for c in text if not c.isprintable()), None)
    if odd is not None:
        raise UnwritableError(f"{where} holds the character {odd!r}, which no batch script can hold safely: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnwritableError(f"{where} is not UTF-8: {text!r}") from None
