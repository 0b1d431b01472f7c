"""Personalised and modular federated learning: `import fedblocks as fb`.

Everything that is needed to run, compare and write methods is a name of this package. Names are
imported when they are asked for: importing is free.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedblocks.config.model import Config as Config
    from fedblocks.config.presets import PRESETS as PRESETS
    from fedblocks.config.presets import read_config as read_config
    from fedblocks.core import rules as rules
    from fedblocks.core.arithmetic import distance2 as distance2
    from fedblocks.core.arithmetic import each as each
    from fedblocks.core.arithmetic import flat as flat
    from fedblocks.core.arithmetic import mix as mix
    from fedblocks.core.arithmetic import pick as pick
    from fedblocks.core.arithmetic import unflat as unflat
    from fedblocks.core.augmentations import *  # noqa: F403 - its __all__
    from fedblocks.core.blocks import Block as Block
    from fedblocks.core.blocks import Fresh as Fresh
    from fedblocks.core.blocks import Frozen as Frozen
    from fedblocks.core.blocks import Mixture as Mixture
    from fedblocks.core.blocks import PerClient as PerClient
    from fedblocks.core.blocks import Pool as Pool
    from fedblocks.core.blocks import Private as Private
    from fedblocks.core.blocks import Selection as Selection
    from fedblocks.core.blocks import ServerOnly as ServerOnly
    from fedblocks.core.blocks import Shared as Shared
    from fedblocks.core.checks import checked as checked
    from fedblocks.core.client import Client as Client
    from fedblocks.core.description import Paper as Paper
    from fedblocks.core.errors import CheckpointError as CheckpointError
    from fedblocks.core.errors import DataError as DataError
    from fedblocks.core.errors import Interrupted as Interrupted
    from fedblocks.core.errors import NetError as NetError
    from fedblocks.core.errors import RunFolderError as RunFolderError
    from fedblocks.core.errors import UserError as UserError
    from fedblocks.core.fields import Fields as Fields
    from fedblocks.core.lora import LoraNet as LoraNet
    from fedblocks.core.lora import lora as lora
    from fedblocks.core.losses import LOSSES as LOSSES
    from fedblocks.core.method import Method as Method
    from fedblocks.core.method import join as join
    from fedblocks.core.metrics import METRICS as METRICS
    from fedblocks.core.metrics import Metric as Metric
    from fedblocks.core.net import Net as Net
    from fedblocks.core.optimizers import SGD as SGD
    from fedblocks.core.optimizers import Adam as Adam
    from fedblocks.core.optimizers import AdamW as AdamW
    from fedblocks.core.optimizers import Optimizer as Optimizer
    from fedblocks.core.options import Above as Above
    from fedblocks.core.options import AnyNumber as AnyNumber
    from fedblocks.core.options import AtLeast as AtLeast
    from fedblocks.core.options import AtMost as AtMost
    from fedblocks.core.options import Below as Below
    from fedblocks.core.options import Conflict as Conflict
    from fedblocks.core.options import Help as Help
    from fedblocks.core.options import Length as Length
    from fedblocks.core.options import Positive as Positive
    from fedblocks.core.parts import Blocks as Blocks
    from fedblocks.core.parts import Filled as Filled
    from fedblocks.core.parts import Params as Params
    from fedblocks.core.parts import Part as Part
    from fedblocks.core.parts import Sized as Sized
    from fedblocks.core.parts import Value as Value
    from fedblocks.core.phases import Batch as Batch
    from fedblocks.core.phases import Phase as Phase
    from fedblocks.core.phases import Pull as Pull
    from fedblocks.core.phases import Update as Update
    from fedblocks.core.pieces import Piece as Piece
    from fedblocks.core.plan import plan as plan
    from fedblocks.core.samplers import *  # noqa: F403 - its __all__
    from fedblocks.core.schedules import Cosine as Cosine
    from fedblocks.core.schedules import Exponential as Exponential
    from fedblocks.core.schedules import Milestones as Milestones
    from fedblocks.core.schedules import Ramp as Ramp
    from fedblocks.core.schedules import Schedule as Schedule
    from fedblocks.core.server import Cohort as Cohort
    from fedblocks.core.starts import Alike as Alike
    from fedblocks.core.starts import Common as Common
    from fedblocks.core.starts import Independent as Independent
    from fedblocks.core.starts import Start as Start
    from fedblocks.core.state import State as State
    from fedblocks.core.task import Task as Task
    from fedblocks.core.uploads import Upload as Upload
    from fedblocks.data import DATASETS as DATASETS
    from fedblocks.data import IGNORE as IGNORE
    from fedblocks.data import DataSet as DataSet
    from fedblocks.data import Federation as Federation
    from fedblocks.data import Partition as Partition
    from fedblocks.data import partitions as partitions
    from fedblocks.data import shifts as shifts
    from fedblocks.data.pools import DataPool as DataPool
    from fedblocks.engines.net_check.check import check_net as check_net
    from fedblocks.engines.net_check.report import NetReport as NetReport
    from fedblocks.engines.processes.engine import Processes as Processes
    from fedblocks.engines.round import Engine as Engine
    from fedblocks.engines.round import Experiment as Experiment
    from fedblocks.engines.round import evaluate as evaluate
    from fedblocks.engines.round import run_round as run_round
    from fedblocks.engines.sequential import Sequential as Sequential
    from fedblocks.engines.vectorised import Vectorised as Vectorised
    from fedblocks.export.models import export_model as export_model
    from fedblocks.export.peft_folder import export_peft as export_peft
    from fedblocks.export.peft_folder import lora_from_peft as lora_from_peft
    from fedblocks.export.peft_folder import read_peft as read_peft
    from fedblocks.export.personal import personal as personal
    from fedblocks.export.predict import predict as predict
    from fedblocks.methods import METHODS as METHODS
    from fedblocks.methods.apfl import APFL as APFL
    from fedblocks.methods.clustered import Clustered as Clustered
    from fedblocks.methods.ditto import Ditto as Ditto
    from fedblocks.methods.fedala import FedALA as FedALA
    from fedblocks.methods.fedamp import FedAMP as FedAMP
    from fedblocks.methods.fedamp import HeurFedAMP as HeurFedAMP
    from fedblocks.methods.fedavg import FedAvg as FedAvg
    from fedblocks.methods.fedavg_ft import FedAvgFT as FedAvgFT
    from fedblocks.methods.fedbabu import FedBABU as FedBABU
    from fedblocks.methods.fedbn import FedBN as FedBN
    from fedblocks.methods.fedem import FedEM as FedEM
    from fedblocks.methods.fedfomo import FedFomo as FedFomo
    from fedblocks.methods.fedmn.method import FedMN as FedMN
    from fedblocks.methods.fedmn.reference import FedMNReference as FedMNReference
    from fedblocks.methods.fedopt import FedAdagrad as FedAdagrad
    from fedblocks.methods.fedopt import FedAdam as FedAdam
    from fedblocks.methods.fedopt import FedYogi as FedYogi
    from fedblocks.methods.fedper import FedPer as FedPer
    from fedblocks.methods.fedprox import FedProx as FedProx
    from fedblocks.methods.fedrecon import FedRecon as FedRecon
    from fedblocks.methods.fedrep import FedRep as FedRep
    from fedblocks.methods.flow.dynamic_routing import DynamicRouting as DynamicRouting
    from fedblocks.methods.flow.flow import Flow as Flow
    from fedblocks.methods.flow.flow_v2 import FlowV2 as FlowV2
    from fedblocks.methods.ifca import IFCA as IFCA
    from fedblocks.methods.lg_fedavg import LGFedAvg as LGFedAvg
    from fedblocks.methods.local import Local as Local
    from fedblocks.methods.lora.dual_lora import DualLoRA as DualLoRA
    from fedblocks.methods.lora.fedavg_lora import FedAvgLoRA as FedAvgLoRA
    from fedblocks.methods.lora.fedsa_lora import FedSALoRA as FedSALoRA
    from fedblocks.methods.lora.ffa_lora import FFALoRA as FFALoRA
    from fedblocks.methods.lora.product_lora import ProductLoRA as ProductLoRA
    from fedblocks.methods.mean_reg_mtl import MeanRegMTL as MeanRegMTL
    from fedblocks.methods.modfl import ModFL as ModFL
    from fedblocks.methods.moon import Moon as Moon
    from fedblocks.methods.per_fedavg import PerFedAvg as PerFedAvg
    from fedblocks.methods.pfedhn import PFedHN as PFedHN
    from fedblocks.methods.pfedmb.method import PFedMB as PFedMB
    from fedblocks.methods.pfedme import PFedMe as PFedMe
    from fedblocks.methods.scaffold import Scaffold as Scaffold
    from fedblocks.nets import NETS as NETS
    from fedblocks.reports.compare import Comparison as Comparison
    from fedblocks.reports.compare import compare as compare
    from fedblocks.reports.html import write_report as write_report
    from fedblocks.reports.tables import leaderboard as leaderboard
    from fedblocks.runs.evaluations import EvaluationDone as EvaluationDone
    from fedblocks.runs.federations import federation_of as federation_of
    from fedblocks.runs.progress import RoundDone as RoundDone
    from fedblocks.runs.python import resume as resume
    from fedblocks.runs.python import run as run
    from fedblocks.runs.result import RunResult as RunResult
    from fedblocks.runs.result import load_run as load_run
    from fedblocks.runs.settings import Settings as Settings
    from fedblocks.runs.stopping import EarlyStopping as EarlyStopping
    from fedblocks.runs.stopping import StopRun as StopRun
    from fedblocks.testing import CHECKS as CHECKS
    from fedblocks.testing import Check as Check
    from fedblocks.testing import Example as Example
    from fedblocks.testing import Reduction as Reduction
    from fedblocks.testing import check_method as check_method
    from fedblocks.testing import example_for as example_for
    from fedblocks.testing import is_fedavg as is_fedavg
    from fedblocks.testing import plan_text as plan_text
    from fedblocks.testing import run_check as run_check
    from fedblocks.testing import small_federation as small_federation
    from fedblocks.testing import small_net as small_net

_NAMES = {  # module -> the names that are taken from it
    "core.arithmetic": "distance2 each flat mix pick unflat",
    "core.augmentations": "AUGMENTATIONS Augmentation Crop Draws Flip Jitter Noise Scale",
    "core.blocks": "Block Fresh Frozen Mixture PerClient Pool Private Selection ServerOnly Shared",
    "core.client": "Client",
    "core.description": "Paper",
    "core.errors": "CheckpointError DataError Interrupted NetError RunFolderError UserError",
    "core.fields": "Fields",
    "core.lora": "LoraNet lora",
    "core.losses": "LOSSES",
    "core.method": "Method join",
    "core.metrics": "METRICS Metric",
    "core.net": "Net",
    "core.checks": "checked",
    "core.options": "Above AnyNumber AtLeast AtMost Below Conflict Help Length Positive",
    "core.optimizers": "SGD Adam AdamW Optimizer",
    "core.parts": "Blocks Filled Params Part Sized Value",
    "core.pieces": "Piece",
    "core.phases": "Batch Phase Pull Update",
    "core.plan": "plan",
    "core.samplers": "SAMPLERS Candidates Sampler SizeSampler TraceSampler UniformSampler",
    "core.schedules": "Cosine Exponential Milestones Ramp Schedule",
    "core.server": "Cohort",
    "core.starts": "Alike Common Independent Start",
    "core.state": "State",
    "core.task": "Task",
    "core.uploads": "Upload",
    "data": "DATASETS IGNORE DataSet Federation Partition",
    "data.pools": "DataPool",
    "engines.round": "Engine Experiment evaluate run_round",
    "engines.net_check.check": "check_net",
    "engines.net_check.report": "NetReport",
    "engines.processes.engine": "Processes",
    "engines.sequential": "Sequential",
    "engines.vectorised": "Vectorised",
    "export.models": "export_model",
    "export.peft_folder": "export_peft lora_from_peft read_peft",
    "export.personal": "personal",
    "export.predict": "predict",
    "methods": "METHODS",
    "methods.apfl": "APFL",
    "methods.clustered": "Clustered",
    "methods.ditto": "Ditto",
    "methods.flow.dynamic_routing": "DynamicRouting",
    "methods.fedala": "FedALA",
    "methods.fedamp": "FedAMP HeurFedAMP",
    "methods.fedavg": "FedAvg",
    "methods.fedavg_ft": "FedAvgFT",
    "methods.fedbabu": "FedBABU",
    "methods.fedbn": "FedBN",
    "methods.fedem": "FedEM",
    "methods.fedfomo": "FedFomo",
    "methods.fedmn.method": "FedMN",
    "methods.fedmn.reference": "FedMNReference",
    "methods.fedopt": "FedYogi FedAdam FedAdagrad",
    "methods.fedper": "FedPer",
    "methods.fedprox": "FedProx",
    "methods.fedrecon": "FedRecon",
    "methods.fedrep": "FedRep",
    "methods.flow.flow": "Flow",
    "methods.flow.flow_v2": "FlowV2",
    "methods.ifca": "IFCA",
    "methods.lg_fedavg": "LGFedAvg",
    "methods.local": "Local",
    "methods.lora.dual_lora": "DualLoRA",
    "methods.lora.fedavg_lora": "FedAvgLoRA",
    "methods.lora.fedsa_lora": "FedSALoRA",
    "methods.lora.ffa_lora": "FFALoRA",
    "methods.lora.product_lora": "ProductLoRA",
    "methods.mean_reg_mtl": "MeanRegMTL",
    "methods.modfl": "ModFL",
    "methods.moon": "Moon",
    "methods.per_fedavg": "PerFedAvg",
    "methods.pfedhn": "PFedHN",
    "methods.pfedmb.method": "PFedMB",
    "methods.pfedme": "PFedMe",
    "methods.scaffold": "Scaffold",
    "nets": "NETS",
    "reports.compare": "Comparison compare",
    "reports.html": "write_report",
    "reports.tables": "leaderboard",
    "config.model": "Config",
    "runs.evaluations": "EvaluationDone",
    "runs.federations": "federation_of",
    "config.presets": "PRESETS read_config",
    "runs.progress": "RoundDone",
    "runs.python": "resume run",
    "runs.result": "RunResult load_run",
    "runs.settings": "Settings",
    "runs.stopping": "EarlyStopping StopRun",
    "testing": (
        "CHECKS Check Example Reduction check_method example_for is_fedavg plan_text run_check "
        "small_federation small_net"
    ),
}
_HOMES = {name: (module, name) for module, names in _NAMES.items() for name in names.split()}
_MODULES = {"partitions": "data.partitions", "rules": "core.rules", "shifts": "data.shifts"}

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedblocks")
    if name in _MODULES:
        return import_module(f"fedblocks.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"fedblocks has no name {name!r}")
    module, own = _HOMES[name]
    return getattr(import_module(f"fedblocks.{module}"), own)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
