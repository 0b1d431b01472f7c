"""For each method a small federation in which its mechanism is active: one entry each."""

from __future__ import annotations

from typing import Any

from fedblocks.core.modular_net import cut_before_head, modular
from fedblocks.core.optimizers import SGD
from fedblocks.core.schedules import Ramp
from fedblocks.methods.apfl import APFL
from fedblocks.methods.clustered import Clustered
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedavg_ft import FedAvgFT
from fedblocks.methods.fedbabu import FedBABU
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.reference import FedMNReference
from fedblocks.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.fedprox import FedProx
from fedblocks.methods.fedrep import FedRep
from fedblocks.methods.ifca import IFCA
from fedblocks.methods.lg_fedavg import LGFedAvg
from fedblocks.methods.local import Local
from fedblocks.methods.mean_reg_mtl import MeanRegMTL
from fedblocks.methods.modfl import ModFL
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.methods.pfedme import PFedMe
from fedblocks.testing.example import Alone, Reduction
from fedblocks.testing.extras import EXTRAS
from fedblocks.testing.federations import small_net
from fedblocks.testing.making import Examples, is_fedavg, ours
from fedblocks.testing.routes import ROUTES

_DECAY = SGD(weight_decay=5e-4)  # the default of mean-regularised multi-task learning
_BETAS = {"beta1": 0.5, "beta2": 0.5}
_QUICK: dict[str, Any] = {"server_lr": 0.05, "tau": 0.05}  # of a size with the changes
_LAYERS = {"layers.0": "model", "layers.2": "model"}
_PATH = modular(small_net(), (6, 5), dropout=0.0)  # encoder, middle block and output, as printed
_CUT = cut_before_head(small_net(), 1, 0.0, None)  # the same of the net itself
_POOL: dict[str, Any] = {"widths": (6, 5), "dropout": 0.0, "summary_width": 4, "label_width": 3}


def _large_tau(**slow: float) -> Reduction:
    """With a second moment that stays at tau squared, 2 tau as learning rate takes the
    whole average change.
    """
    return is_fedavg("a large tau", {"model": "model"}, server_lr=2e5, beta1=0.0, tau=1e5, **slow)


EXAMPLES: Examples = {
    "local": ours("local", Local, Alone(("model",))),
    "fedavg": ours("fedavg", FedAvg, Alone(("model",))),
    "fedprox": ours(
        "fedprox", FedProx, is_fedavg("strength 0", {"model": "model"}, strength=0.0), strength=0.5
    ),
    "fedavg_ft": ours("fedavg_ft", FedAvgFT, is_fedavg("training", {"model": "model"})),
    "fedper": ours("fedper", FedPer, Alone(("body", "head"))),
    "ditto": ours(
        "ditto",
        Ditto,
        is_fedavg("the shared model", {"shared": "model"}),
        Reduction("strength 0 is Local", Local, {"personal": "model"}, {"strength": 0.0}),
    ),
    "ifca": ours(
        "ifca",
        IFCA,
        is_fedavg("one cluster", {"clusters": "model"}, clusters=1),
        clusters=2,
        seed=5,
    ),
    "fedem": ours(
        "fedem",
        FedEM,
        is_fedavg("one component", {"components": "model"}, components=1),
        components=2,
    ),
    "pfedmb": ours(
        "pfedmb",
        PFedMB,
        is_fedavg("one branch", _LAYERS, branches=1),
        branches=2,
        others={"drop_below": 0.49},  # of weights near a half
    ),
    "modfl": ours(
        "modfl",
        ModFL,
        is_fedavg(
            "one operation cohort", {"configuration": "model"}, operations=1, cohorts="found"
        ),
        operations=2,
        others={"cohorts": "found"},
        exceptions={
            "no_dead_knobs/warmup": "it matters where cohorts are found, and here they are given",
            "no_dead_knobs/operations": "a third cohort, of nobody, changes nothing where "
            "cohorts are given",
        },
    ),
    "clustered": ours(
        "clustered",
        Clustered,
        is_fedavg("a cluster that never splits", {"clusters": "model"}, never_split=True),
        max_clusters=3,
        epsilon1=2.0,
        epsilon2=0.2,
        first_round=0,
        min_size=1,
        others={
            "max_clusters": 2,
            "epsilon1": 0.2,
            "epsilon2": 2.0,
            "min_size": 3,
            "weigh_by": "clients",
        },
        exceptions={
            "unwritten_slots/clusters": "a split fills the slot of the new cluster",
            "unwritten_slots/membership": "a split gives its members their new cluster",
        },
    ),
    "pfedme": ours(
        "pfedme",
        PFedMe,
        Reduction(
            "one inner step on one batch is a step of FedAvg",
            FedAvg,
            {"shared": "model"},
            {"inner_steps": 1, "local_rounds": 1, "batch_size": 20},
            {"lr": 0.2 * 2.0 * 0.1, "batch_size": 20},
        ),
        strength=2.0,
        inner_lr=0.1,
        inner_steps=3,
        local_rounds=0,
    ),
    "mean_reg_mtl": ours(
        "mean_reg_mtl",
        MeanRegMTL,
        Reduction(
            "strength 0 is Local",
            Local,
            {"model": "model"},
            {"strength": 0.0},
            {"optimizer": _DECAY},
        ),
    ),
    "fedyogi": ours("fedyogi", FedYogi, _large_tau(beta2=1 - 1e-13), others=_BETAS, **_QUICK),
    "fedadam": ours("fedadam", FedAdam, _large_tau(beta2=1 - 1e-13), others=_BETAS, **_QUICK),
    "fedadagrad": ours("fedadagrad", FedAdagrad, _large_tau(), **_QUICK),
    "apfl": ours(
        "apfl",
        APFL,
        is_fedavg("the shared model", {"shared": "model"}),
        Reduction(
            "alpha 1 is Local", Local, {"personal": "model"}, {"alpha": 1.0, "adapt_alpha": "never"}
        ),
        adapt_alpha="step",
        others={"adapt_alpha": "round", "mixing": "outputs"},
    ),
    "lg_fedavg": ours(
        "lg_fedavg",
        LGFedAvg,
        is_fedavg("nothing local", {"top": "model"}, top_layers=2),
        Alone(("bottom", "top")),
        others={"lg_global": "bottom", "top_layers": 2},
    ),
    "fedrep": ours(
        "fedrep",
        FedRep,
        Reduction(
            "heads that never train are FedBABU's", FedBABU, {"body": "body"}, {"head_epochs": 0}
        ),
        head_epochs=3,
    ),
    "fedbabu": ours(
        "fedbabu",
        FedBABU,
        Reduction(
            "training is FedRep's without its heads",
            FedRep,
            {"body": "body"},
            {},
            {"head_epochs": 0},
        ),
        tune_epochs=2,
        others={"tune": "head"},
    ),
    "fedmn": ours(
        "fedmn",
        FedMN,
        Reduction(
            "one path is FedAvg on the net, with a block that adds to it",
            FedAvg,
            dict.fromkeys(("encoders", "modules.2", "outputs"), "model"),
            {"modules": (1, 1, 1), "widths": None},
            {"net": _CUT},
        ),
        exceptions={
            "named_blocks_move/gates": "a client without a step to take has the gates of "
            "an evaluation",
            "named_blocks_move/router": "its head alone learns, and rests in the first round, when "
            "all gates are open",
            "no_dead_knobs/router_samples": "what the router sees stays the same where its head "
            "alone learns",
        },
        lr=0.5,
        modules=(2, 2, 2),
        module_start="independent",
        lr_scale="printed",
        router_start="drawn",
        gate_noise=Ramp(1.0, 0.0, 0.5),
        eval_gate="soft",  # what moves the router a little moves these, and hard choices not yet
        others={
            "gate_mode": "soft",
            "eval_gate": "mode",
            "modules": (2, 3, 2),
            "widths": (5, 6),
            "module_start": "alike",
            "router_start": "updates",
        },
        **_POOL,
    ),
    "fedmn_reference": ours(
        "fedmn_reference",
        FedMNReference,
        Alone(
            ("encoder", "module.2", "output"),
            {"net": _PATH, "modules": (1, 1, 1), "widths": None, "dropout": None},
        ),
        exceptions={
            "client_twice": "clients count alike whatever they hold, as in the released code"
        },
        spread=0.5,
        lr=0.1,
        others={"modules": (2, 2, 3), "widths": (5, 6)},
        **_POOL,
    ),
}
EXAMPLES |= EXTRAS | ROUTES
