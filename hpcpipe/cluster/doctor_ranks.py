"""Judge what the ranks of a launcher have found out together (rank_probe.py): GPUs, cores, limits, clocks, links.

It must not know how anything was measured.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from hpcpipe.cluster.check import Check
from hpcpipe.cluster.placement import Seat, judge_gpus

SLOW = 3.0
"""A link that is this many times slower than the median of all links is worth a look."""
SAME_CLOCK_S = 1.0
LIKE_TCP_US = 10.0
"""Half a round trip of 8 bytes: fast networks need 1 to 3 µs, TCP over Ethernet 7 and more."""
SLOW_SYNC_MS = 500.0
LITTLE_STACK = 1 << 20
FEW_LINKS = 16
BARS = "▁▂▃▄▅▆▇█"
UNLIMITED = -1

Facts = dict[str, Any]


def check_ranks(ranks: Sequence[Facts], links: Sequence[Facts]) -> Iterator[Check]:
    """Yield every check of the ranks together."""
    nodes: dict[str, list[Facts]] = defaultdict(list)
    for rank in ranks:
        nodes[rank["node"]].append(rank)
    yield _same_mpi(nodes)
    yield _transports(ranks, links)
    yield _gpus(ranks)
    yield _cores(nodes)
    yield _limits(nodes)
    yield _clocks(nodes)
    yield _folder(nodes)
    yield _files(nodes)
    yield _links(ranks, links)


def _same_mpi(nodes: dict[str, list[Facts]]) -> Check:
    kinds: dict[tuple[str, int], list[str]] = defaultdict(list)
    for node, ranks in nodes.items():
        for kind in {(rank["library"], rank["handle_bytes"]) for rank in ranks}:
            kinds[kind].append(node)
    if len(kinds) == 1:
        return Check("mpi on all nodes", "pass", f"the same on {_many(len(nodes), 'node')}: {next(iter(kinds))[0]}")
    said = "; ".join(f"{library} on {_names(there)}" for (library, _), there in kinds.items())
    return Check(
        "mpi on all nodes", "fail", said, "load the same module, or use the same environment folder, on every node"
    )


def _transports(ranks: Sequence[Facts], links: Sequence[Facts]) -> Check:
    name = "transports"
    found = sorted({name for rank in ranks for name in rank["transports"]})
    settings = sorted({f"{key}={value}" for rank in ranks for key, value in rank["network_settings"].items()})
    detail = (
        f"MPI has loaded {', '.join(found)}" if found else "MPI uses neither UCX nor libfabric nor a vendor's library"
    )
    detail += f"; set: {' '.join(settings)}" if settings else ""
    node_of = {rank["rank"]: rank["node"] for rank in ranks}
    between = [link["latency_us"] for link in links if node_of[link["from"]] != node_of[link["to"]]]
    if between and median(between) > LIKE_TCP_US:
        return Check(
            name,
            "warn",
            f"{detail}; {median(between):.3g} µs between nodes, as TCP has it",
            "InfiniBand and Slingshot have 1 to 3 µs: use the site's MPI, or let this one find the network (UCX_TLS, "
            "UCX_NET_DEVICES, FI_PROVIDER); `ucx_info -d` and `fi_info -l` list what there is",
        )
    hint = "" if found else "MPI brings its own; compare the links below with what your network can do"
    return Check(name, "pass", detail, hint)


def _gpus(ranks: Sequence[Facts]) -> Check:
    name = "gpus of the ranks"
    given = [rank for rank in ranks if rank["gpus"]]
    if not given:
        return Check(name, "skip", "no rank was given a GPU", "with GPUs: #SBATCH --gpus-per-node=N")
    seats = [
        Seat(
            rank["rank"],
            rank["node"],
            rank["local_rank"] or 0,
            None if rank["gpus"] is None else tuple(rank["gpus"]),
            None if rank["whole"] is None else tuple(rank["whole"]),
            rank["on_node"],
        )
        for rank in ranks
    ]
    wrong = judge_gpus(seats, gpus_per_node=max(len(rank["gpus"] or ()) for rank in ranks))
    if wrong:
        what, _, hint = wrong.partition("; ")
        return Check(name, "fail", what, hint)
    isolated = all(len(rank["gpus"]) == 1 for rank in given) and len(ranks) > len({rank["node"] for rank in ranks})
    if isolated:
        return Check(
            name,
            "warn",
            "each rank sees one GPU only, so CUDA IPC between the ranks of a node cannot work",
            "use --gpus-per-node=N with --gpu-bind=none; where the site enforces this: MPICH_GPU_IPC_ENABLED=0",
        )
    return Check(name, "pass", "every rank has a GPU of its own")


def _cores(nodes: dict[str, list[Facts]]) -> Check:
    name = "cores of the ranks"
    for node, ranks in nodes.items():
        cores = {core for rank in ranks for core in rank["cores"]}
        threads = sum(rank["threads"] or 1 for rank in ranks)
        if threads > len(cores):
            return Check(
                name,
                "warn",
                f"{_many(len(ranks), 'rank')} with {_many(threads, 'OMP thread')} share {_many(len(cores), 'core')} "
                f"on {node}",
                "ask for more with --cpus-per-task on the srun line, start fewer ranks, or set OMP_NUM_THREADS=1",
            )
        if len(ranks) > 1 and all(len(rank["cores"]) == 1 for rank in ranks) and len(cores) < len(ranks):
            return Check(name, "warn", f"ranks on {node} are bound to the same core", "srun --cpu-bind=cores")
    return Check(name, "pass", "each node has a core for every thread of its ranks")


def _limits(nodes: dict[str, list[Facts]]) -> Check:
    for node, ranks in nodes.items():
        for rank in ranks:
            if rank["stack"] != UNLIMITED and rank["stack"] < LITTLE_STACK:
                return Check("limits", "warn", f"the stack on {node} is {rank['stack'] >> 10} KiB", "ulimit -s 8192")
            fast = set(rank["transports"]) - {"libfabric", "UCX"}
            if fast and rank["memlock"] != UNLIMITED and rank["memlock"] < 1 << 30:
                return Check(
                    "limits",
                    "warn",
                    f"locked memory on {node} is limited to {rank['memlock'] >> 10} KiB, fast networks need more",
                    "ask the site for memlock unlimited, or PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
                )
    first = next(iter(nodes.values()))[0]
    shown = {
        name: "unlimited" if first[name] == UNLIMITED else f"{first[name] >> 10} KiB" for name in ("memlock", "stack")
    }
    return Check("limits", "pass", f"locked memory {shown['memlock']}, stack {shown['stack']}")


def _clocks(nodes: dict[str, list[Facts]]) -> Check:
    offsets = {node: ranks[0]["clock_offset_s"] for node, ranks in nodes.items()}
    worst = max(offsets, key=lambda node: abs(offsets[node]))
    detail = f"times of day differ by {abs(offsets[worst]) * 1e3:.3g} ms at most"
    if abs(offsets[worst]) > SAME_CLOCK_S:
        hint = "logs of different nodes will not line up by date; tell the site (hpcpipe's event times are corrected)"
        return Check("clocks", "warn", f"{detail}, on {worst}", hint)
    return Check("clocks", "pass", detail)


def _folder(nodes: dict[str, list[Facts]]) -> Check:
    blind = [node for node, ranks in nodes.items() if not all(rank["sees_folder"] for rank in ranks)]
    if blind:
        return Check(
            "shared folder",
            "fail",
            f"a file that rank 0 makes where runs go is not seen on {_names(blind)}",
            "choose a folder on the cluster's shared file system: [job] run_dir, or --run-dir",
        )
    return Check("shared folder", "pass", f"files where runs go are seen on {_many(len(nodes), 'node')}")


def _files(nodes: dict[str, list[Facts]]) -> Check:
    name = "files of all nodes"
    found = {node: files for node, ranks in nodes.items() for rank in ranks if (files := rank["files"]) is not None}
    move = "choose another folder for runs: [job] run_dir, or --run-dir"
    broken = {node: files["error"] for node, files in found.items() if "error" in files}
    if broken:
        error = next(iter(broken.values()))
        return Check(name, "fail", f"files cannot be written where runs go from {_names(list(broken))}: {error}", move)
    unlocked = {node: files["locks"] for node, files in found.items() if files["locks"]}
    if unlocked:
        detail = f"files cannot be locked from {_names(list(unlocked))}: {next(iter(unlocked.values()))}"
        return Check(
            name, "warn", detail, "logs are written without locks; for other programs HDF5_USE_FILE_LOCKING=FALSE"
        )
    if not found:
        return Check(name, "skip", "no node was asked", "")
    slowest = max(found, key=lambda node: float(found[node]["synced_ms"]))
    detail = f"written, synced, locked and renamed from {_many(len(found), 'node')}"
    detail += f"; syncing 4 KiB took {found[slowest]['synced_ms']:.3g} ms at most, on {slowest}"
    if found[slowest]["synced_ms"] > SLOW_SYNC_MS:
        return Check(name, "warn", detail, f"checkpoints will be slow to save; {move}, or a faster file system")
    return Check(name, "pass", detail)


def _links(ranks: Sequence[Facts], links: Sequence[Facts]) -> Check:
    name = "links"
    if not links:
        return Check(name, "skip", "one rank has no neighbour", "start more ranks")
    node_of = {rank["rank"]: rank["node"] for rank in ranks}
    latency, rate = median(link["latency_us"] for link in links), median(link["mb_per_s"] for link in links)
    slow = sorted(
        (link for link in links if slowness(link, latency, rate) > SLOW),
        key=lambda link: -slowness(link, latency, rate),
    )
    told = slow[:5] if len(links) > FEW_LINKS else links
    lines = [
        f"rank {link['from']} on {node_of[link['from']]} to rank {link['to']} on {node_of[link['to']]}: "
        f"{link['latency_us']:.3g} µs, {link['mb_per_s']:,.0f} MB/s{', slow' if link in slow else ''}"
        for link in told
    ]
    detail = f"{_many(len(links), 'link')} between neighbours, median {latency:.3g} µs and {rate:,.0f} MB/s"
    detail = "\n".join([detail, strip(links), *lines])
    if not slow:
        return Check(name, "pass", detail)
    hint = "links inside a node and between nodes differ by nature; "
    suspect = _suspect(slow, links, node_of)
    hint += (
        f"{suspect} is on every slow one: try --exclude={suspect}" if suspect else "repeat it before you blame a node"
    )
    return Check(name, "warn", detail, hint)


def slowness(link: Facts, latency: float, rate: float) -> float:
    """Return how many times slower a link is than the given latency or rate, whichever is worse."""
    return float(max(link["latency_us"] / max(latency, 1e-9), rate / max(link["mb_per_s"], 1e-9)))


def strip(links: Sequence[Facts]) -> str:
    """Return a heat map of the links: a bar for each, the higher the slower, 64 in a row."""
    latency, rate = median(link["latency_us"] for link in links), median(link["mb_per_s"] for link in links)
    bars = ""
    for link in sorted(links, key=lambda link: link["from"]):
        step = (slowness(link, latency, rate) - 1) / SLOW * (len(BARS) - 1)
        bars += BARS[max(0, min(len(BARS) - 1, round(step)))]
    rows = [bars[start : start + 64] for start in range(0, len(bars), 64)]
    return "\n".join(f"{64 * row:>6} {bars}" for row, bars in enumerate(rows))


def _suspect(slow: Sequence[Facts], links: Sequence[Facts], node_of: dict[int, str]) -> str | None:
    """Return the node that is on every slow link, if it is on no quick one to another node."""

    def ends(link: Facts) -> set[str]:
        return {node_of[link["from"]], node_of[link["to"]]}

    common = set.intersection(*map(ends, slow))
    quick = [link for link in links if link not in slow and len(ends(link)) > 1]
    common -= {node for link in quick for node in ends(link)}
    return next(iter(common)) if len(common) == 1 and len(slow) > 1 else None


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(sorted(nodes)[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
