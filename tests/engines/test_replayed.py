"""Steps that are repeated from a list of operations end where the plain ones end, to the bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedblocks.core.mode import current
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.engines.replay import replayed as replayed_steps
from fedblocks.engines.replay.recording import Recorder
from fedblocks.engines.replay.replayed import Pace, Trusted
from fedblocks.engines.replay.running import Machine
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods import METHODS
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import state_leaves
from tests.representatives import mark_others


def outcome(experiment, cohorts, engine) -> tuple[dict, dict]:
    state = experiment.start()
    for cohort in cohorts:
        state, _ = run_round(experiment, state, cohort, engine)
    return state_leaves(state), evaluate(experiment, state, cohorts[0], engine)


def programs(engine: Sequential) -> list:
    return [program for replayed in engine.known.values() for program in replayed.programs.values()]


def compared(experiment, cohorts) -> Sequential:
    """The engine that repeated steps, after its results were found to be those of the plain one."""
    engine = Sequential(worth=0)
    (ours, scores), (theirs, expected) = (
        outcome(experiment, cohorts, e) for e in (engine, Sequential(replay=False))
    )
    assert ours.keys() == theirs.keys() and scores == expected
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    return engine


@pytest.mark.parametrize("name", mark_others(EXAMPLES))
def test_every_method_ends_where_it_ends_without_repeating(name) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    example = EXAMPLES[name]()
    compared(example.experiment(), [example.everybody] * 2)


def small(optimizer=None, make=None, **options) -> Experiment:
    example = EXAMPLES["fedavg"]().experiment()
    x = example.data.x
    layers = lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(x[0].numel(), 8), nn.ReLU(), nn.Linear(8, 10)
    )
    net = Net.of(make or layers, dtype=x.dtype)
    method = METHODS["fedavg"](net, batch_size=4, epochs=2, optimizer=optimizer or SGD(), **options)
    return replace(example, methods={"all": method})


def test_momentum_noise_and_statistics_are_repeated() -> None:
    def make() -> nn.Module:
        inputs = EXAMPLES["fedavg"]().experiment().data.x[0].numel()
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10)
        )

    engine = compared(small(SGD(momentum=0.9, weight_decay=1e-3), make), [[0, 1], [0, 1]])
    assert any(program is not None for program in programs(engine))


class Between(nn.Module):
    """Two layers; somebody changes what goes from one to the other."""

    def __init__(self, change) -> None:
        super().__init__()
        inputs = EXAMPLES["fedavg"]().experiment().data.x[0].numel()
        self.a, self.change, self.b = nn.Linear(inputs, 8), change, nn.Linear(8, 10)

    def forward(self, x):
        return self.b(self.change(torch.tanh(self.a(x.flatten(1)))))


def with_complex_noise(h: torch.Tensor) -> torch.Tensor:
    z = torch.view_as_complex(h.unflatten(1, (4, 2)))
    return torch.view_as_real(z + torch.randn_like(z)).flatten(1) if current().training else h


def in_a_named_range(h: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("a name"):
        return h * 2


def with_noise_without_dimensions(h: torch.Tensor) -> torch.Tensor:
    return h * (torch.rand(()) + torch.randn(())) if current().training else h


@pytest.mark.parametrize(
    "change", [with_complex_noise, with_noise_without_dimensions, in_a_named_range]
)
def test_such_a_step_is_repeated_and_made_faster(change, monkeypatch) -> None:
    monkeypatch.setattr(replayed_steps, "clock", lambda: 0.0)  # else rounds this short do not pay
    engine = compared(small(make=lambda: Between(change)), [[0, 1]] * 4)
    assert any(program is not None and program.fast for program in programs(engine))


def test_the_names_of_a_profiler_are_no_part_of_a_program() -> None:
    given = torch.ones(3)
    with Recorder([given]) as recorder:
        in_a_named_range(given).add_(1)
    assert [str(operation.call) for operation in recorder.operations] == [
        "aten.mul.Tensor",
        "aten.add_.Tensor",
    ]


def test_a_step_with_an_object_of_no_known_kind_is_not_repeated() -> None:
    packed = torch.ops.quantized.linear_prepack_fp16(torch.ones(2, 3), None)
    given = torch.ones(1, 3)
    with Recorder([given]) as recorder:
        torch.ops.quantized.linear_dynamic_fp16(given, packed)
    assert recorder.program(1) is None


def test_a_new_round_needs_one_step_to_trust_what_the_last_one_wrote_down() -> None:
    experiment, engine = small(), Sequential(worth=0)
    state, actual = experiment.start(), []
    for _ in range(3):
        state, _ = run_round(experiment, state, [0, 1], engine)
        (replayed,) = engine.known.values()
        actual.append(
            {signature: trusted for signature, trusted in replayed.programs.items() if trusted}
        )
    assert actual[0] and actual[1] == actual[0] and actual[2] == actual[0]
    assert {replayed.seen[signature] for signature in actual[2]} == {1}


def test_a_program_is_made_faster_once_it_has_run_often_enough(monkeypatch) -> None:
    monkeypatch.setattr(replayed_steps, "clock", lambda: 0.0)  # else rounds this short do not pay
    experiment, engine = small(), Sequential(worth=1)
    state, fast = experiment.start(), []
    for _ in range(3):
        state, _ = run_round(experiment, state, [0, 1], engine)
        (trusted,) = [actual for actual in programs(engine) if actual is not None]
        fast.append((trusted.runs > 6, trusted.machine.direct))
    assert fast == [(False, False), (False, False), (True, True)]


def test_a_program_of_the_round_before_that_does_not_fit_any_more_is_written_down_anew(
    monkeypatch,
) -> None:
    experiment = small()
    method = experiment.methods["all"]
    phase = method.phases()[0]
    update = phase.updates[0]
    loss = lambda blocks, batch: update.loss(blocks, batch) * (1.0 + batch.client.round)
    odd = replace(phase, updates=(replace(update, loss=loss),))
    monkeypatch.setattr(type(method), "phases", lambda self: [odd])
    engine = compared(experiment, [[0, 1], [0, 1], [0, 1]])
    assert any(program is not None for program in programs(engine))


def test_an_optimizer_that_counts_its_steps_is_not_repeated() -> None:
    actual = programs(compared(small(Adam()), [[0, 1]]))
    assert actual and all(program is None for program in actual)


def test_a_step_that_looks_at_its_numbers_is_not_repeated(monkeypatch) -> None:
    experiment = small()
    method = experiment.methods["all"]
    phase = method.phases()[0]
    update = phase.updates[0]
    loss = lambda blocks, batch: (
        update.loss(blocks, batch) * (2.0 if float(batch.x.sum()) > 0 else 1.0)
    )
    odd = replace(phase, updates=(replace(update, loss=loss),))
    monkeypatch.setattr(type(method), "phases", lambda self: [odd])
    actual = programs(compared(experiment, [[0, 1]]))
    assert actual and all(program is None for program in actual)


class LastOfLSTM(nn.Module):
    """What a fused recurrent layer puts out after the last of the inputs, read one by one."""

    def __init__(self, rests: bool = False, **options) -> None:
        super().__init__()
        self.rests = rests  # no gradient is taken of it
        self.lstm = nn.LSTM(1, 5, batch_first=True, **options)
        self.head = nn.Linear(5 * (1 + self.lstm.bidirectional), 10)

    def forward(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.rests):
            end = self.lstm(x.flatten(1)[..., None])[0][:, -1]
        return self.head(end)


class Looking(nn.Linear):
    """A layer in which Python looks at numbers."""

    def forward(self, x):
        return super().forward(x) * (2.0 if float(x.sum()) > 0 else 1.0)


def in_single(make) -> Experiment:
    example = EXAMPLES["fedavg"]().experiment()
    method = METHODS["fedavg"](Net.of(make, dtype=torch.float32), batch_size=4, epochs=2)
    data = replace(example.data, x=example.data.x.float())
    return replace(example, methods={"all": method}, data=data)


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}, {"rests": True}]
)
def test_fused_recurrent_layers_are_repeated(options) -> None:
    engine = compared(in_single(lambda: LastOfLSTM(**options)), [[0, 1]] * 3)
    trusted = [program for program in programs(engine) if program is not None]
    assert max(own.runs for own in trusted) > 1
    called = {str(call.call) for own in trusted for call in own.program.operations}
    assert "aten.mkldnn_rnn_layer.default" in called
    assert ("aten.mkldnn_rnn_layer_backward.default" in called) != ("rests" in options)


def test_a_step_that_cannot_be_repeated_is_written_down_in_one_round_and_not_again(
    monkeypatch,
) -> None:
    def make() -> nn.Module:
        inputs = EXAMPLES["fedavg"]().experiment().data.x[0].numel()
        return nn.Sequential(nn.Flatten(), Looking(inputs, 10))

    written: list[int] = []
    enter = Recorder.__enter__
    monkeypatch.setattr(Recorder, "__enter__", lambda self: (written.append(1), enter(self))[1])
    experiment, engine = in_single(make), Sequential(worth=0)
    state, rounds = experiment.start(), []
    for _ in range(3):
        state, _ = run_round(experiment, state, [0, 1], engine)
        rounds.append(len(written))
    (replayed,) = engine.known.values()
    assert rounds[0] > 0 and rounds[1:] == rounds[:1] * 2
    assert replayed.unrepeatable == {*replayed.seen} and rounds[0] == len(replayed.seen)
    replayed._begin(99)
    replayed._begin(100)  # a round in which nobody had such steps: they are forgotten
    assert replayed.unrepeatable == set() and replayed.kinds == {}


def test_a_recorded_program_does_to_other_tensors_what_it_did_to_the_first() -> None:
    weight, x = torch.randn(3, 4), torch.randn(2, 4)

    def step(weight, x):
        weight.add_(x.sum(0), alpha=-0.1)
        weight.t().mul_(2)

    with Recorder([weight, x]) as recorder:
        step(weight, x)
    program = recorder.program(steady=1)
    other, expected = torch.randn(3, 4), torch.empty(3, 4)
    expected.copy_(other)
    run = Machine(program, {}).bound([other])
    for seed in range(3):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))
        run(x)
        step(expected, x)
    assert torch.equal(other, expected)


def test_views_of_what_stays_are_made_once_and_unread_results_never() -> None:
    weight, x = torch.randn(3, 4), torch.randn(2, 4)
    with Recorder([weight, x]) as recorder:
        x.exp()  # nobody reads it
        weight.copy_(torch.mm(x, weight.t()).sum().expand(3, 4))
    program = recorder.program(steady=1)
    names = [
        [o.call.overloadpacket.__name__ for o in part]
        for part in (program.first, program.operations)
    ]
    assert names == [["t"], ["mm", "sum", "expand", "copy_"]]


def test_the_memory_of_a_result_is_given_back_after_its_last_use() -> None:
    x = torch.randn(4)
    with Recorder([x]) as recorder:
        x.copy_(x.exp().sin())
    program = recorder.program(steady=0)
    assert [len(operation.done) for operation in program.operations] == [0, 1, 1]


def test_a_program_that_outlives_a_round_is_made_faster_sooner_and_once() -> None:
    for lasting, least in ((True, 6), (False, 24)):
        trusted = Trusted(None, None, lasting=lasting)
        due = []
        for trusted.runs in range(1, 100):
            due.append(trusted.is_due(worth=1))
        assert due.index(True) + 1 == least + 1 and sum(due) == 1


def test_a_first_convolution_without_a_bias_is_repeated() -> None:
    """Of its three gradients the second alone is there: that of the weights."""
    layers = lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3, bias=False), nn.Flatten(), nn.Linear(12, 10)
    )
    engine = compared(small(make=layers), [[0, 1, 2, 3]] * 2)
    assert programs(engine)


def test_what_a_step_frees_is_freed_while_it_is_written_down() -> None:
    """Of a chain of results only the last one is alive; each has a slot and memory of its own, even
    where the address of one that was freed is taken again.
    """
    x, alive = torch.randn(1000), []
    with Recorder([x]) as recorder:
        result = x
        for _ in range(20):
            result = result.exp()
            alive.append(len(recorder.slots))
        x.copy_(result)
    outs = [out for operation in recorder.operations[:-1] for out in operation.outs]
    assert max(alive) <= 3  # x, a result and the one before it
    assert len({*outs}) == 20 and len({*recorder.program(steady=0).storages}) == 21


def test_a_gradient_frees_activations_while_it_is_written_down() -> None:
    """Eight layers: as many tensors are alive as without a recording, not all of the step."""
    weights = [torch.randn(8, 8) for _ in range(8)]
    alive: list[int] = []
    with Recorder(weights) as recorder:
        leaves = [w.detach().requires_grad_() for w in weights]
        h = torch.randn(4, 8)
        for leaf in leaves:
            h = torch.tanh(h @ leaf)
        loss = h.sum()
        del h
        alive.append(len(recorder.slots))
        grads = torch.autograd.grad(loss, leaves)
        del loss
        alive.append(len(recorder.slots))
    assert len(grads) == 8
    # weights and leaves; forward one result of each layer and its saved copy, then one gradient
    assert alive[0] <= 16 + 2 * 8 + 4 and alive[1] <= 16 + 8 + 4


def test_a_step_of_sparse_tensors_is_not_repeated() -> None:
    x = torch.eye(3)
    with Recorder([x]) as recorder:
        x.copy_(x.to_sparse().to_dense())
    assert recorder.program(steady=0) is None


def test_a_step_that_is_known_is_compared_and_no_program_made_of_it(monkeypatch) -> None:
    made_of: list[int] = []
    program = Recorder.program
    monkeypatch.setattr(
        Recorder, "program", lambda self, steady: (made_of.append(1), program(self, steady))[1]
    )
    experiment, engine, rounds = small(), Sequential(worth=0), []
    state = experiment.start()
    for _ in range(3):
        state, _ = run_round(experiment, state, [0, 1], engine)
        rounds.append(len(made_of))
    assert rounds[0] >= 2 and rounds[1:] == rounds[:1] * 2


def test_a_changed_constant_is_seen_when_a_step_is_written_down_again() -> None:
    x, factor = torch.randn(3), torch.ones(3)

    def recorded(times: torch.Tensor) -> Recorder:
        with Recorder([x]) as recorder:
            x.mul_(times)
        return recorder

    program = recorded(factor).program(steady=0)
    assert recorded(factor).repeats(program) and recorded(torch.ones(3)).repeats(program)
    assert not recorded(torch.full((3,), 2.0)).repeats(program)
    factor.add_(1)
    assert not recorded(factor).repeats(program)


def test_steps_are_repeated_only_in_rounds_where_that_pays(monkeypatch) -> None:
    """Time stands still but while a step is written down, so that it never pays."""
    now, written = [0.0], []
    enter = Recorder.__enter__

    def enter_slowly(recorder: Recorder) -> Recorder:
        now[0] += 1.0
        written.append(1)
        return enter(recorder)

    monkeypatch.setattr(Recorder, "__enter__", enter_slowly)
    monkeypatch.setattr(replayed_steps, "clock", lambda: now[0])
    experiment, engine, rounds = small(), Sequential(worth=1), []
    state = plain = experiment.start()
    for _ in range(20):
        state, _ = run_round(experiment, state, [0, 1], engine)
        plain, _ = run_round(experiment, plain, [0, 1], Sequential(replay=False))
        rounds.append(len(written))
    assert rounds[0] > 0 and rounds[:17] == rounds[:1] * 17  # once, to know what it takes
    assert (
        rounds[17] > rounds[16] and rounds[17:] == [rounds[17]] * 3
    )  # and after 16 rounds of rest
    ours, theirs = state_leaves(state), state_leaves(plain)
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []


@pytest.mark.parametrize(
    ("steps", "pays"),
    # a step saves 2, writing one down takes 30 more: 15 others bring that back
    [(1, False), (15, False), (16, True), (100, True)],
)
def test_writing_down_pays_if_the_other_steps_save_what_it_takes(steps, pays) -> None:
    pace = Pace(2, plain=20, written=50, repeated=18, steps=steps)
    pace.begin_round()
    assert (pace.pays, pace.steps) == (pays, 0)


@pytest.mark.parametrize(("least", "pays"), [(2, True), (3, True), (4, False), (math.inf, False)])
def test_before_anything_was_measured_steps_are_written_down_if_some_would_be_repeated(
    least, pays
) -> None:
    nothing_plain = Pace(least, written=50, repeated=18, steps=3)
    nothing_repeated = Pace(least, plain=20, written=50, steps=3)
    for pace in (nothing_plain, nothing_repeated):
        pace.begin_round()
        assert pace.pays == pays


def test_steps_that_differ_or_are_few_are_written_down_in_the_first_round_only(monkeypatch) -> None:
    """Adam's steps differ by their count; four steps a round are too few to repeat one."""
    written: list[int] = []
    enter = Recorder.__enter__
    monkeypatch.setattr(Recorder, "__enter__", lambda self: (written.append(1), enter(self))[1])
    for experiment, worth in ((small(Adam()), 0), (small(), 3)):
        written.clear()
        engine, rounds, state = Sequential(worth=worth), [], experiment.start()
        for _ in range(3):
            state, _ = run_round(experiment, state, [0, 1], engine)
            rounds.append(len(written))
        assert rounds[0] > 0 and rounds[1:] == rounds[:1] * 2


def test_what_a_repeated_step_takes_is_measured_without_binding_a_client(monkeypatch) -> None:
    now = [0.0]
    bound = Machine.bound

    def bind_slowly(machine, inputs):
        now[0] += 10.0
        return bound(machine, inputs)

    monkeypatch.setattr(Machine, "bound", bind_slowly)
    monkeypatch.setattr(replayed_steps, "clock", lambda: now[0])
    engine = Sequential(worth=0)
    experiment = small()
    run_round(experiment, experiment.start(), [0, 1], engine)
    (replayed,) = engine.known.values()
    assert min(pace.repeated for pace in replayed.paces.values()) == 0.0
