"""Tasks, hint orders, ready-set, caps and policies: pure standard library, driven by runtime and simulator alike."""

from hpcpipe.plan.accounting import USEFUL, TimeClass
from hpcpipe.plan.admission import ADMISSIONS, admission_order
from hpcpipe.plan.advice import Advice, advise
from hpcpipe.plan.caps import harmful, in_flight_caps, limits_for
from hpcpipe.plan.check import OrdersWaitError, Peaks, check_order
from hpcpipe.plan.exchanges import Exchanges, early_gathers, usual_bucket_bytes
from hpcpipe.plan.flight import Limits, chunk_profile
from hpcpipe.plan.hint import Hint, Order
from hpcpipe.plan.hints import ORDERS, RULES, make_hint
from hpcpipe.plan.hints.table import Table, TableError, read_table, write_table
from hpcpipe.plan.online import OnlineProfile
from hpcpipe.plan.paths import remaining_paths, start_times, step_time
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.policy import Policy, make_policy
from hpcpipe.plan.profile import Profile, StageTimes, gather
from hpcpipe.plan.recorder import FLAG_BACKWARD, FLAG_DEVICE_TIMES, FLAG_RECOMPUTED, FLAG_REPLAYED, Recorder
from hpcpipe.plan.schedule import Schedule
from hpcpipe.plan.seeds import derive_seed
from hpcpipe.plan.split import balanced_split, even_stages
from hpcpipe.plan.stage import Choice, StagePlan
from hpcpipe.plan.task import Kind, Task

__all__ = [
    "ADMISSIONS",
    "FLAG_BACKWARD",
    "FLAG_DEVICE_TIMES",
    "FLAG_RECOMPUTED",
    "FLAG_REPLAYED",
    "ORDERS",
    "RULES",
    "USEFUL",
    "Advice",
    "Choice",
    "Exchanges",
    "Hint",
    "Kind",
    "Limits",
    "OnlineProfile",
    "Order",
    "OrdersWaitError",
    "Peaks",
    "Placement",
    "Policy",
    "Profile",
    "Recorder",
    "Schedule",
    "StagePlan",
    "StageTimes",
    "Table",
    "TableError",
    "Task",
    "TimeClass",
    "admission_order",
    "advise",
    "balanced_split",
    "check_order",
    "chunk_profile",
    "derive_seed",
    "early_gathers",
    "even_stages",
    "gather",
    "harmful",
    "in_flight_caps",
    "limits_for",
    "make_hint",
    "make_policy",
    "read_table",
    "remaining_paths",
    "start_times",
    "step_time",
    "usual_bucket_bytes",
    "write_table",
]
