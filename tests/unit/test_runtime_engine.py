"""The engine with a scripted mailbox and stage: what its loop does, and what it spares itself, in a wait."""

from contextlib import contextmanager

from hpcpipe.device import Finished
from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, TimeClass
from hpcpipe.runtime import Engine, NoBuckets
from hpcpipe.runtime.channel import Arrival, Neighbour
from hpcpipe.runtime.header import Content, Header

EMPTY_POLLS = 40


class _Recorder:
    def __init__(self):
        self.rows = []

    def event(self, kind, *values, wait_class=0, **more):
        self.rows.append((Kind(kind), TimeClass(wait_class)))


class _Mailbox:
    """Hands out each message after so many polls in which nothing came."""

    due = None
    sending = False

    def __init__(self, messages):
        self._messages, self._polls = list(messages), 0
        self.sent = []

    def begin(self, step):
        pass

    def poll(self):
        self._polls += 1
        if self._messages and self._polls > EMPTY_POLLS:
            self._polls = 0
            neighbour, microbatch = self._messages.pop(0)
            header = Header(0, microbatch, 0, 0, Content.of("t", []))
            return [(neighbour, Arrival(header, f"value {microbatch}", 0, 0))], []
        return [], []

    def send(self, stage, feeds, value, *, step):
        self.sent.append((stage, feeds, value))

    def release(self, task, slot):
        pass


class _Waiting:
    def __init__(self):
        self.idles = 0

    def idle(self, due=None):
        self.idles += 1

    def busy(self):
        pass


class _Stage:
    has_data = False

    def __init__(self, log):
        self._log = log

    def load(self, step):
        pass

    def start(self, step, task, received):
        self._log.append((task, received))
        return Finished(f"of {task}")


def _engine(messages, log, *, computing=None):
    schedule = Schedule("1f1b", "ready", Placement(2), 2, (Limits(2), Limits(2)))
    plans = []

    def make_plan(_step, _gathering=()):
        plan = schedule.stage_plan(1)
        plans.append(plan)
        plan.asked = 0
        choose = plan.choose

        def counted():
            plan.asked += 1
            return choose()

        plan.choose = counted
        return plan

    waiting, recorder, mailbox = _Waiting(), _Recorder(), _Mailbox(messages)
    engine = Engine(
        stage=_Stage(log),
        mailbox=mailbox,
        buckets=NoBuckets(),
        recorder=recorder,
        waiting=waiting,
        number=1,
        make_plan=make_plan,
        computing=computing,
    )
    return engine, plans, waiting, recorder, mailbox


FORWARDS = [(Neighbour(Kind.F, 0, 0), microbatch) for microbatch in (1, 0)]


def test_a_rank_that_waits_asks_the_plan_again_only_when_something_has_come():
    log = []
    engine, plans, waiting, recorder, mailbox = _engine(FORWARDS, log)
    engine.run_step(0)
    assert [task for task, _ in log] == [Task(kind, m) for m in (1, 0) for kind in (Kind.F, Kind.B)]
    assert [received for _, received in log[::2]] == ["value 1", "value 0"]
    assert [(stage, feeds) for stage, feeds, _ in mailbox.sent] == [(0, Task(Kind.B, 1)), (0, Task(Kind.B, 0))]
    assert waiting.idles >= 2 * (EMPTY_POLLS - 2)
    assert plans[-1].asked == 4 + 2, "once a task, and once at the begin of each of the two waits"
    waits = [wait for kind, wait in recorder.rows if kind is Kind.WAIT]
    assert waits == [TimeClass.WARMUP, TimeClass.DEPENDENCY]


def test_what_lets_messages_move_is_entered_for_each_task_and_left_in_between():
    log = []

    @contextmanager
    def computing():
        log.append("enters")
        yield
        log.append("leaves")

    class Reentered:
        def __enter__(self):
            self._now = computing()
            self._now.__enter__()

        def __exit__(self, *error):
            self._now.__exit__(*error)

    engine, *_ = _engine(FORWARDS, log, computing=Reentered())
    engine.run_step(0)
    assert [entry if isinstance(entry, str) else "task" for entry in log] == ["enters", "task", "leaves"] * 4
