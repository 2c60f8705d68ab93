"""The story of the demo, step by step. Every figure is read off the fleet; none is assumed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import yaml
from rich.console import Console

from infra.cli import applying, fleet, processes
from infra.cli.demo import observe, stage, stores
from infra.cli.demo.observe import PodStart
from infra.cli.demo.stores import Stores
from infra.cli.demo.stream import BackgroundStream
from infra.cli.demo.summary import Summary
from infra.cli.demo.traffic import Tally, conversations, send
from infra.cli.home import Home, shipped
from infra.cli.quantities import size
from infra.local.model import change_one_shard, make_model
from tasks.kube import Kube, connect
from tasks.plan.schema import KIND

ENDPOINT, HUB_ENDPOINT = "chat", "chat-hf"
NODES = {"node-a": 3, "node-b": 1, "node-c": 1}  # GPUs: room for both models, and one more on a warm node
LATE_NODE, LATE_GPUS = "node-d", 3
REQUESTS, CONCURRENCY, CONVERSATIONS = 32, 2, 8
PREFIX_AWARE = {"strategy": "PREFIX_AWARE", "prefixLength": 1024, "concurrencyThreshold": 4}


class Disappointed(Exception):
    """A step did not end as it should; the message says which and why."""


@dataclass(slots=True)
class Story:
    """What the steps share, and the figures as they gather."""

    home: Home
    out: Console
    size_bytes: int
    began: float = field(default_factory=time.monotonic)
    stores: Stores | None = None
    kube: Kube = field(default_factory=connect)
    rollouts: int = 0
    streams: list[Tally] = field(default_factory=list)
    loads: dict[str, Tally] = field(default_factory=dict)
    nodes_warm: str = "0/0"
    unverified_files: int = 0
    warm_start: PodStart | None = None
    cold_start: PodStart | None = None
    fetched_ratio: float = 1.0
    old_cache_deleted: bool = False

    @property
    def model(self) -> Path:
        return self.home.root / "model"

    @contextmanager
    def stream(self, seed: int, endpoint: str = ENDPOINT) -> Iterator[None]:
        """Requests go on, one after the other, during the block."""
        with BackgroundStream(fleet.addresses(self.home).router, endpoint, seed=seed) as stream:
            try:
                yield
            finally:
                self.streams.append(stream.tally)

    def summary(self) -> Summary:
        tallies = [*self.streams, *self.loads.values()]
        random, prefix = self.loads.get("RANDOM", Tally()), self.loads.get("PREFIX_AWARE", Tally())
        return Summary(
            rollouts=self.rollouts,
            nodes_warm=self.nodes_warm,
            cold_ready_s=self.cold_start.ready_s if self.cold_start else 0.0,
            warm_ready_s=self.warm_start.ready_s if self.warm_start else 0.0,
            requests=sum(tally.requests for tally in tallies),
            failed_requests=sum(tally.failures.total() for tally in tallies),
            hit_rate_random=random.hit_rate,
            hit_rate_prefix=prefix.hit_rate,
            ttft_p50_ms_random=random.ttft_p50_ms,
            ttft_p50_ms_prefix=prefix.ttft_p50_ms,
            update_fetched_ratio=self.fetched_ratio,
            old_cache_deleted=self.old_cache_deleted,
            unverified_files=self.unverified_files,
        )


def tell(out: Console, *, keep: bool, size_bytes: int) -> int:
    """Run the demo. Returns the exit status: 0 when all of it is as it should be."""
    home = stage.prepare()
    began = time.monotonic()
    story = None
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        story = Story(home, out, size_bytes)
        for step in (open_stores, start_fleet, roll_first, roll_from_hub, scale_out, route_by_prefix, roll_update):
            step(story)
        problems = story.summary().shortfalls()
    except (Disappointed, observe.TookTooLong, processes.ServiceFailed, applying.Refused) as error:
        problems = [str(error)]
    finally:
        ended_s = time.monotonic() - began
        if not keep:
            stage.close(home, out)
    failures = {reason for tally in story.streams for reason in tally.failures} if story else set()
    for problem in [*problems, *sorted(failures)]:
        out.print(f"[red]✗[/] {problem}", highlight=False)
    if keep:
        stage.tell_kept(home, out)
    elif problems:
        out.print(f"Logs are in {home.root / 'logs'}")
    else:
        shutil.rmtree(home.root)
    out.print(f"The demo took {ended_s:.0f} s.")
    if story:
        # The last line is for programs: plain, unwrapped.
        out.print(story.summary().to_json(), markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0


def open_stores(story: Story) -> None:
    """A real S3 server with a model in a bucket, and a Hugging Face hub with a small one."""
    title(story, 1, "Sources: an S3 server with a model in a bucket, and a Hugging Face hub")
    # Prefect's server takes ten seconds to start: it may do so while the model is made.
    fleet.begin(story.home, fleet.services(story.home))
    story.stores = stores.start(story.home)
    with story.out.status(f"making a model of {size(story.size_bytes)}"):
        make_model(story.model, story.size_bytes)
        make_model(story.home.root / "hub" / stores.HUB_MODEL, 20_000_000, shards=2)
    total_bytes = sum(path.stat().st_size for path in story.model.iterdir())
    with stores.upload_bar(story.out, total_bytes) as advance:
        stores.upload(story.stores, story.model, advance)
    story.out.print(f"s3://{stores.BUCKET}/{stores.PREFIX} at {story.stores.s3_url} holds {size(total_bytes)}")
    story.out.print(f"hf://{stores.HUB_MODEL} at {story.stores.hub_url}")


def start_fleet(story: Story) -> None:
    title(story, 2, f"A fleet on this machine: Prefect, {len(NODES)} nodes, a router")
    for name, gpus in NODES.items():
        fleet.add_node(story.home, name, nvme_bytes=4 * story.size_bytes, gpus=gpus)
    with story.out.status("starting"):
        fleet.start_all(story.home, fleet.services(story.home), lambda line: story.out.print(f"  ✓ {line}"))
    stores.keep_credentials(story.kube, stores_of(story))
    where = fleet.addresses(story.home)
    story.out.print(f"Prefect UI {where.prefect} · router {where.router}")


def roll_first(story: Story) -> None:
    title(story, 3, "Roll out: the weights reach every node before its pod")
    roll(story)
    summary = observe.rollout_summary(story.kube, ENDPOINT)
    story.nodes_warm = f"{summary['nodesWarm']}/{summary['nodesTarget']}"
    say_pods(story, list(observe.pod_starts(story.kube, ENDPOINT).values()))


def roll_from_hub(story: Story) -> None:
    title(story, 4, "A second model, from a Hugging Face hub: first the plan, then the rollout")
    file = write_example(story, "endpoint-hf.yaml", stores_of(story).hub_url)
    applying.show_plan(story.kube, file, story.out)
    apply(story, file)
    with story.stream(seed=3, endpoint=HUB_ENDPOINT):
        time.sleep(1)


def scale_out(story: Story) -> None:
    title(story, 5, "Scale from 3 to 5 while requests run; one node joins cold")
    before = observe.pod_starts(story.kube, ENDPOINT)
    with story.stream(seed=4):
        fleet.add_node(story.home, LATE_NODE, nvme_bytes=4 * story.size_bytes, gpus=LATE_GPUS)
        story.kube.patch("Deployment", ENDPOINT, {"spec": {"replicas": 5}}, "default", subresource="scale")
        observe.wait_until("5 pods are ready", lambda: len(observe.pod_starts(story.kube, ENDPOINT)) == 5)
        observe.wait_until("the router knows 5 instances", lambda: len(instances(story)) == 5)
        time.sleep(1)
    new = [start for uid, start in observe.pod_starts(story.kube, ENDPOINT).items() if uid not in before]
    say_pods(story, new)
    story.warm_start = next((start for start in new if start.weights == "hit"), None)
    story.cold_start = next((start for start in new if start.weights == "source"), None)
    if not (story.warm_start and story.cold_start):
        raise Disappointed(f"One new pod should start warm and one cold; they started {[s.weights for s in new]}")


def route_by_prefix(story: Story) -> None:
    title(story, 6, "Chats that begin alike: RANDOM, then PREFIX_AWARE switched in while requests run")
    load(story, "RANDOM", seed=51)
    with story.stream(seed=52):
        body = {"spec": {"routing": PREFIX_AWARE}}
        story.kube.patch(KIND, ENDPOINT, body, "default")
        observe.wait_until("the router routes by prefix", lambda: strategy(story) == "PREFIX_AWARE")
        time.sleep(1)
    load(story, "PREFIX_AWARE", seed=53)


def roll_update(story: Story) -> None:
    title(story, 7, "One shard changes at the source: roll again, with requests running")
    before = observe.caches_of(story.kube, ENDPOINT)
    shard = change_one_shard(story.model)
    with stores.upload_bar(story.out, shard.stat().st_size) as advance:
        stores.upload(stores_of(story), story.model, advance, only=shard)
    with story.stream(seed=6):
        roll(story)
    story.old_cache_deleted = not (before & observe.caches_of(story.kube, ENDPOINT))
    digest = story.kube.get(KIND, ENDPOINT, "default")["status"]["digest"]
    told = observe.fetched_by_node(story.kube, digest)
    held = [told[node] for node in NODES if node in told]
    total_bytes = sum(fetched + reused for fetched, reused in held)
    story.fetched_ratio = sum(fetched for fetched, _ in held) / total_bytes if total_bytes else 1.0
    story.out.print(f"Nodes that had the old revision fetched {story.fetched_ratio:.0%} of the model")


def roll(story: Story) -> None:
    """apply -f examples/endpoint.yaml."""
    apply(story, write_example(story, "endpoint.yaml", stores_of(story).s3_url))
    story.rollouts += 1


def apply(story: Story, file: Path) -> None:
    """Record the endpoint of `file` and roll it out, as the command does."""
    endpoint = applying.record(story.kube, file, change_source=False)
    outcome = applying.roll(story.home, story.kube, endpoint, story.out)
    story.out.print(outcome.message, highlight=False)
    if not outcome.ok:
        raise Disappointed(f"The rollout ended {outcome.state}: {outcome.message} ({outcome.url})")
    story.unverified_files += observe.rollout_summary(story.kube, endpoint.name)["unverifiedFiles"]


def load(story: Story, name: str, seed: int) -> None:
    """One measured load; its conversations are its own, so that no earlier load warmed them."""
    url = fleet.addresses(story.home).router
    with story.out.status(f"{REQUESTS} requests under {name}"):
        prompts = conversations(seed, CONVERSATIONS)
        tally = asyncio.run(send(url, ENDPOINT, prompts, requests=REQUESTS, concurrency=CONCURRENCY, seed=seed))
    story.loads[name] = tally
    story.out.print(
        f"{name:<13} {tally.hit_rate:4.0%} of prompt tokens from caches, "
        f"first token after {tally.ttft_p50_ms:.0f} ms (p50), {tally.failures.total()} of {tally.requests} failed",
        highlight=False,
    )


def write_example(story: Story, name: str, endpoint_url: str) -> Path:
    """The example with this home's addresses, and the routing that is in force."""
    resource = yaml.safe_load(shipped(f"examples/{name}").read_text())
    resource["spec"]["cachePolicy"]["source"]["endpointUrl"] = endpoint_url
    if story.loads and name == "endpoint.yaml":
        resource["spec"]["routing"] = PREFIX_AWARE
        resource["spec"]["replicas"] = 5
    file = story.home.root / name
    file.write_text(yaml.safe_dump(resource, sort_keys=False))
    return file


def instances(story: Story) -> list[object]:
    return list(observe.routed(fleet.addresses(story.home).admin, ENDPOINT)["instances"])


def strategy(story: Story) -> str:
    told = observe.routed(fleet.addresses(story.home).admin, ENDPOINT)
    return str(told.get("routing", told).get("strategy"))


def stores_of(story: Story) -> Stores:
    if story.stores is None:
        raise Disappointed("the sources are not open yet")
    return story.stores


def say_pods(story: Story, starts: list[PodStart]) -> None:
    words = {"hit": "warm: weights from the node's copy", "source": "cold: weights from the source"}
    for start in sorted(starts, key=lambda start: start.node):
        told = words.get(start.weights, start.weights)
        story.out.print(f"  {start.node}  {start.pod}  ready in {start.ready_s:.1f} s  ({told})", highlight=False)


def title(story: Story, number: int, text: str) -> None:
    story.out.print()
    elapsed_s = time.monotonic() - story.began
    story.out.print(f"[bold]{number}. {text}[/] [dim]({elapsed_s:.0f} s)[/]", highlight=False)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
