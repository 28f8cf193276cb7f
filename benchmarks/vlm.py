"""Run jobs/vlm.toml under several schedules and admissions and show where their time went, side by side.

The runs take turns, `--rounds` times each, and of each schedule the run with the least median step is shown, so that
what else the machine does weighs little. More ranks than cores compete for these, and no schedule can help there:
choose --pipeline to fit the machine. What the sizes of images and texts alone predict is printed below.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOB = ROOT / "jobs" / "vlm.toml"
SCHEDULES = {
    "fixed-1f1b": ("1f1b", "fixed", "as-given"),
    "fixed-zb-h1": ("zb-h1", "fixed", "as-given"),
    "ready-zb-h1": ("zb-h1", "ready", "as-given"),
    "fixed-1f1b-pyramid": ("1f1b", "fixed", "pyramid"),
    "ready-zb-h1-pyramid": ("zb-h1", "ready", "pyramid"),
}


def hpcpipe(*words: str | Path, show: bool = True) -> str:
    """Run a command of hpcpipe and return what it printed."""
    command = [sys.executable, "-m", "hpcpipe", *map(str, words)]
    wide = os.environ | {"COLUMNS": "150"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=wide)
    if show:
        print(done.stdout, flush=True)
    return done.stdout


def settings(hint: str, dispatch: str, admission: str) -> list[str]:
    """Return the words that choose a schedule."""
    values = f"schedule.hint={hint}", f"schedule.dispatch={dispatch}", f"schedule.admission={admission}"
    return [word for value in values for word in ("--set", value)]


def main() -> None:
    """Run the schedules in turn and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", type=int, default=4, help="stages, one rank each")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plots", type=Path, help="folder for pictures of a step, of the first and the last schedule")
    options = parser.parse_args()
    if not (ROOT / "jobs" / "digits" / "records.jsonl").exists():
        subprocess.run([sys.executable, JOB.parent / "digits.py"], check=True)
    size = ["--set", f"parallel.pipeline={options.pipeline}", "--set", f"job.steps={options.steps}"]
    best: dict[str, tuple[int, Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name, chosen in SCHEDULES.items():
                run = Path(folder) / f"{name}-{number}"
                words = ["--set", f"job.name={name}", *settings(*chosen), *size]
                hpcpipe("run", JOB, "--quiet", "--run-dir", run, *words, show=False)
                found = json.loads(hpcpipe("analyze", run, "--json", show=False))
                median = found["step_ns"]["median"]
                print(f"round {number + 1}/{options.rounds} {name}: {median * 1e-6:.1f} ms a step", flush=True)
                best[name] = min(best.get(name, (median, run)), (median, run))
        runs = [best[name][1] for name in SCHEDULES]
        hpcpipe("analyze", *runs)
        if options.plots is not None:
            options.plots.mkdir(parents=True, exist_ok=True)
            step = str(options.steps // 2)
            for run, name in ((runs[0], "fixed-1f1b"), (runs[-1], "ready-zb-h1-pyramid")):
                picture = options.plots.absolute() / f"vlm-{name}.svg"
                hpcpipe("analyze", run, "--step", step, "--plot", picture, show=False)
                print(f"picture {picture}")
    others = ",".join(":".join([hint, way, f"admission={rule}"]) for hint, way, rule in SCHEDULES.values())
    print("predicted from the sizes of images and texts, on ranks that do not share cores:")
    machine = ["--tflops", "0.03", "--gbit", "10"]
    hpcpipe("simulate", JOB, *size, *machine, *settings("zb-h1", "ready", "auto"), "--compare", others)


if __name__ == "__main__":
    main()
