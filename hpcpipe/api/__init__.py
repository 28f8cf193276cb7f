"""What `import hpcpipe` offers to scripts and notebooks: jobs, their plans and predictions, runs and their analysis.

It parses no command line, prints nothing, and starts neither MPI nor torch in the process that calls it before a
model's sizes are asked for.
"""

from hpcpipe.api.predicting import Simulation, predict
from hpcpipe.api.recorded_run import Run
from hpcpipe.api.running import RunFailedError, run
from hpcpipe.api.stage_plans import Plan, plans

__all__ = ["Plan", "Run", "RunFailedError", "Simulation", "plans", "predict", "run"]
