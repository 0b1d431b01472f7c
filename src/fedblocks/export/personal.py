"""One client's personal model, taken from a run by the very code that evaluates it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedblocks.config.code.ingredients import Ingredients
from fedblocks.config.model import ALL, Config
from fedblocks.core import mode
from fedblocks.core.client_names import client_number
from fedblocks.core.errors import UserError
from fedblocks.core.forward_errors import tell_forward_errors
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.state import State
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.data import Federation
from fedblocks.data.arrays import FieldInputs, Inputs
from fedblocks.engines.round import Experiment, evaluation_jobs
from fedblocks.engines.sequential import adapted_blocks
from fedblocks.export.conversion import InputForm, is_bytes, refuse_bytes
from fedblocks.export.one_net import merge
from fedblocks.runs.build import prepare
from fedblocks.runs.newest import Which, stored_state
from fedblocks.runs.python import Methods
from fedblocks.runs.result import RunResult, models_config_of
from fedblocks.runs.sameness import check_same_code, check_same_federation, on_the_cpu
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder

_COMPARED = 16  # examples of a client on which merged weights are compared with its model
_LOOKED_AT = 64  # examples of a client that show which numbers it was trained on


class Examples(NamedTuple):
    """Examples of one client, and the part of its data that they are of."""

    part: str
    x: Tensor  # [examples, ...]
    y: Tensor


@dataclass(frozen=True, eq=False)
class Personal:
    """A client's model: its method, and the blocks with which the method predicts for
    this client.
    """

    client: int
    method: Method
    blocks: Blocks
    round: int  # rounds of training behind it
    data: Federation
    config: Config | None = None  # of the run that it comes from
    group: str = ALL  # of clients, in the configuration

    def __repr__(self) -> str:
        numbers = sum(v.numel() for block in self.blocks.values() for v in block.values())
        whose = f'client {self.client} "{self.data.names[self.client]}"'
        made_by = f"{type(self.method).__name__} after round {self.round}"
        blocks = ", ".join(self.blocks)
        return f"Personal({whose}, {made_by}, blocks {blocks}: {numbers:,} numbers)"

    @tell_forward_errors()
    def predict(self, x: Inputs | FieldInputs) -> Tensor:
        """Logits for some inputs, [batch, ..., classes], or numbers, [batch, outputs]. Arrays and
        tensors are taken as the data were: bytes are 0 to 1, other numbers float32.
        """
        self._check_bytes(x)
        x = InputForm.of(self.data).take(x, "x")
        with torch.no_grad(), mode.mode(training=False, mapped=False, task=self.data.task):
            return self.method.predict(self.blocks, x)

    @tell_forward_errors()
    def merged(self) -> Params:
        """The weights of the module that this model is, `module.load_state_dict(model.merged())`:
        adapters are merged into the base, mixtures are mixed. A model that is no single net is
        refused, and so are weights that are not the model on examples of the client.
        """
        return merge(self.method, self.blocks, self.examples(_COMPARED).x, self.data.task)

    def _check_bytes(self, x: Inputs | FieldInputs) -> None:
        """Refuse bytes, which become 0 to 1, for a model that was trained on other numbers."""
        if is_bytes(x) and not self.takes_bytes:
            known = self.examples(_LOOKED_AT).x
            ends = f"from {float(known.min()):.3g} to {float(known.max()):.3g}"
            refuse_bytes("x", f"training inputs go {ends}")

    @property
    def takes_bytes(self) -> bool:
        """Whether training inputs were 0 to 1, as bytes become, or whole numbers."""
        known = self.examples(_LOOKED_AT).x
        return not known.is_floating_point() or bool(0 <= known.min() <= known.max() <= 1)

    def examples(self, most: int) -> Examples:
        """Some of the client's own examples, those held out for tests where there are any."""
        for part in ("test", "validation", "train"):
            rows = self.data.parts[part][self.client][:most]
            if len(rows):
                return Examples(part, self.data.inputs(rows), self.data.y[rows])
        raise UserError(f"client {self.client} has no examples", "choose a client with data")


@tell_forward_errors()
@in_own_modes
def personal(
    run: str | Path | RunResult,
    client: int | str,
    method: Methods | None = None,
    data: Federation | None = None,
    *,
    which: Which = "last",
) -> Personal:
    """The model with which a client of a run is evaluated, as of the run's last checkpoint, or of
    that which did best on validation data (`which="best"`), on the CPU.

    What a method does before an evaluation is done here too: fine-tuning, choosing a cluster,
    finding gates. The client is a number, counted from 0, or a name. A run that was
    started with a method and data needs the same again, but not its sampler.
    """
    if (method is None) != (data is None):
        message = "a method without data" if data is None else "data without a method"
        raise UserError(message, "give both, as to `run`: fb.personal(run, client, method, data)")
    ingredients = None if method is None or data is None else Ingredients.of(method, data)
    with RunFolder.open(run.folder if isinstance(run, RunResult) else Path(run)) as folder:
        prepared = prepare(on_the_cpu(models_config_of(folder, ingredients)))
        check_same_federation(folder, prepared)
        check_same_code(folder, prepared)
        number = client_number(client, prepared.experiment.data.names)
        state = _state_of(folder, which)
    unseen = number in prepared.unseen
    model = personal_of(
        prepared.experiment, state, number, prepared.unseen if unseen else prepared.clients, unseen
    )
    return replace(model, config=prepared.config)


def personal_of(
    experiment: Experiment,
    state: State,
    client: int | str,
    clients: list[int] | None = None,
    joining: bool = False,
) -> Personal:
    """The same from a state in hand; `clients` are those that are evaluated together, by default
    all.

    `joining` treats the client as one that never took part.
    """
    client = client_number(client, experiment.data.names)
    everybody = list(range(experiment.data.clients)) if clients is None else clients
    for job in evaluation_jobs(experiment, state, everybody, joining):
        if client in job.ids:
            blocks = adapted_blocks(job, job.ids.index(client))
            plain = {
                name: {k: v.detach().clone() for k, v in block.items()}
                for name, block in blocks.items()
            }
            group = experiment.groups[client] if experiment.groups else ALL
            return Personal(client, job.method, plain, state.round, experiment.data, group=group)
    message = f"client {client} is not among those that are evaluated together"
    raise UserError(message, "name it in `clients`, too")


def _state_of(folder: RunFolder, which: Which) -> State:
    if not checkpoint.has_checkpoints(folder.checkpoints):
        raise UserError(
            f"{folder.path} has no checkpoint yet", "wait for its first one, or resume the run"
        )
    return stored_state(folder, which)
