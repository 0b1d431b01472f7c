"""The jobs that are timed, as data. Their inputs are noise of the right shape: nothing
is to be learned from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedblocks.core.errors import UserError, nearest
from fedblocks.methods import METHODS
from fedblocks.methods.fedmn import AS_PRINTED
from fedblocks.methods.flow import POSTER

COLOUR = (3, 32, 32)
GREY = (1, 28, 28)


@dataclass(frozen=True)
class BenchJob:
    """One round of one method, the same again and again."""

    # with the method or the size after a slash where a job has several: J2/pfedmb, J8/1000
    name: str
    about: str
    net: str  # a name in NETS
    shape: tuple[int, ...]  # of one input; [steps] for tokens
    classes: int
    clients: int
    cohort: int  # clients a round
    examples: int  # of one client
    batch: int
    method: str = "fedavg"
    options: dict[str, Any] = field(default_factory=dict)  # of the method
    net_options: dict[str, Any] = field(default_factory=dict)
    tests: int = 0  # test examples of one client, all evaluated in every round if there are any
    # where the whole cohort would take minutes on a CPU; all figures are per example
    cpu_cohort: int | None = None

    @property
    def tokens(self) -> bool:
        return len(self.shape) == 1

    @property
    def steps(self) -> int:
        """Batches of one client in a round of one epoch."""
        return -(-self.examples // self.batch)

    def on(self, device: str) -> BenchJob:
        """The same job with the cohort that suits a device."""
        if device != "cpu" or self.cpu_cohort is None:
            return self
        return replace(self, cohort=self.cpu_cohort)


J1 = BenchJob(
    "J1",
    "LeNet, 50 clients x 768, batch 64",
    net="lenet",
    shape=COLOUR,
    classes=10,
    clients=50,
    cohort=50,
    examples=768,
    batch=64,
)

# what the papers use, where it is not the default
_PAPER: dict[str, dict[str, Any]] = {
    "pfedmb": {"branches": 5},
    "fedem": {"components": 3},
    "ifca": {"clusters": 3},
    "fedmn": dict(AS_PRINTED),
    "flow": dict(POSTER),
}


def _methods() -> list[BenchJob]:
    base = replace(J1, about="J1 with another method", cpu_cohort=2)
    return [
        replace(base, name=f"J2/{name}", method=name, options=_PAPER.get(name, {}))
        for name in METHODS
    ]


J3 = BenchJob(
    "J3",
    "MobileNet-v2 with BatchNorm, 40 clients, batch 128",
    net="mobilenet_v2",
    shape=COLOUR,
    classes=10,
    clients=40,
    cohort=40,
    examples=512,
    batch=128,
    cpu_cohort=1,
)
J4 = BenchJob(
    "J4",
    "next-word LSTM, 50 clients, batch 16, 20 steps",
    net="next_word",
    shape=(20,),
    classes=10_004,
    clients=50,
    cohort=50,
    examples=128,
    batch=16,
    cpu_cohort=1,
)
J5 = BenchJob(
    "J5",
    "pfl's CIFAR-10 job: 1000 users x 50, batch 10",
    net="pfl_cnn",
    shape=COLOUR,
    classes=10,
    clients=1000,
    cohort=50,
    examples=50,
    batch=10,
)
J6 = BenchJob(
    "J6",
    "PFLlib's quick start: 20 clients, all evaluated in every round",
    net="femnist_cnn",
    shape=GREY,
    classes=10,
    clients=20,
    cohort=20,
    examples=600,
    batch=10,
    tests=200,
    cpu_cohort=4,
)
J7 = BenchJob(
    "J7",
    "MLP 784-200-200-10, 64 clients, batch 16",
    net="mlp",
    shape=GREY,
    classes=10,
    clients=64,
    cohort=64,
    examples=160,
    batch=16,
    net_options={"hidden": (200, 200)},
)


# nets that nobody made this library for: 32 clients of 256 examples, batch 32
J10 = BenchJob(
    "J10",
    "ResNet-20 with GroupNorm, 32 clients x 256, batch 32",
    net="resnet",
    shape=COLOUR,
    classes=10,
    clients=32,
    cohort=32,
    examples=256,
    batch=32,
    cpu_cohort=2,
)
J11 = replace(
    J10,
    name="J11",
    about="ResNet 64-128-256 with GroupNorm, 32 clients x 256, batch 32",
    net_options={"widths": (64, 128, 256), "blocks": 2},
    cpu_cohort=1,
)
J12 = replace(
    J10, name="J12", about="vision transformer of 4 layers of 192, as J10", net="vit", cpu_cohort=1
)
J13 = replace(
    J10,
    name="J13",
    about="GRU 128 on 32 steps of 96, as J10",
    net="gru",
    shape=(96, 32),
    net_options={"units": 128},
    cpu_cohort=8,
)
J14 = replace(
    J10,
    name="J14",
    about="causal transformer, 4 layers of 256, 128 tokens of 4,000, 32 clients",
    net="gpt",
    shape=(128,),
    classes=4_000,
    cpu_cohort=1,
)


def _population(clients: int) -> BenchJob:
    return BenchJob(
        f"J8/{clients}",
        f"{clients:,} clients that keep a head of their own, 100 a round",
        net="mlp",
        shape=(1, 8, 8),
        classes=10,
        clients=clients,
        cohort=100,
        examples=20,
        batch=10,
        method="fedper",
        net_options={"hidden": (64,)},
    )


LARGE = _population(10**6)  # left out unless asked for: gigabytes of client tables

JOBS: dict[str, BenchJob] = {
    job.name: job
    for job in (
        J1,
        *_methods(),
        J3,
        J4,
        replace(J4, name="J4/flow", about="Flow on J4", method="flow", options=_PAPER["flow"]),
        J5,
        J6,
        J7,
        *(_population(10**power) for power in (3, 4, 5)),
        *(J10, J11, J12, J13, J14),
    )
}


def choose_jobs(names: list[str], large: bool) -> list[BenchJob]:
    """The jobs of these names; `J2` stands for all of its methods, no name for all jobs
    but those.
    """
    known = {**JOBS, **({LARGE.name: LARGE} if large else {})}
    jobs: dict[str, BenchJob] = {}
    for name in names or [key for key in known if not key.startswith("J2/")]:
        here = {key: job for key, job in known.items() if key == name or key.startswith(f"{name}/")}
        if not here:
            raise UserError(f'there is no job "{name}"', nearest(name, [*known, "J2", "J8"]))
        jobs |= here
    return list(jobs.values())
