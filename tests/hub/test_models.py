"""Models of transformers as nets: equal to a plain loop on the model itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedblocks as fb

from . import plain
from .conftest import CLASSES, STEPS, bert, texts, written
from .plain import SEED, Branches, Course, Tensors

ENGINES = {"sequential": fb.Sequential(), "vectorised": fb.Vectorised()}
ROUNDS, RATE, BATCH = 2, 0.1, 4
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def net_of(data: fb.Federation, attention: str = "sdpa", dropout: float = 0.0) -> fb.Net:
    return fb.Net.of(lambda: bert(attention, dropout), inputs=data.fields, output="logits")


def begin(method: fb.Method, data: fb.Federation) -> fb.State:
    return fb.Experiment.of(method, data, seed=SEED).start()


def finish(method: fb.Method, data: fb.Federation, engine: str) -> fb.State:
    """The state after two rounds of all clients."""
    experiment = fb.Experiment.of(method, data, seed=SEED)
    state = experiment.start()
    for _ in range(ROUNDS):
        state, report = fb.run_round(experiment, state, range(data.clients), ENGINES[engine])
        assert not report.refusals
    return state


def first_slot(block: Tensors) -> Tensors:
    return {name: value[0] for name, value in block.items()}


def assert_close(ours: Tensors, theirs: Tensors, start: Tensors | None = None) -> None:
    """To 1e-5, the tolerance that users are promised; and training has moved something."""
    assert ours.keys() == theirs.keys()
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    assert worst <= 1e-5, worst
    if start is not None:
        assert max(float((ours[name] - start[name]).abs().max()) for name in ours) > 1e-2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@EACH_ENGINE
def test_fedavg_trains_a_transformers_model_as_a_plain_loop(engine: str, attention: str) -> None:
    data = written()
    method = fb.FedAvg(net_of(data, attention), lr=RATE, batch_size=BATCH, epochs=2)
    start = first_slot(begin(method, data).server["model"])
    wanted = plain.fedavg(Course(method, data), bert(attention).train(), start, ROUNDS, RATE)
    ours = first_slot(finish(method, data, engine).server["model"])
    assert_close(ours, wanted, start)


@EACH_ENGINE
def test_fedper_keeps_the_classifier_of_each_client_as_a_plain_loop(engine: str) -> None:
    data = written()
    method = fb.FedPer(net_of(data), lr=RATE, batch_size=BATCH)
    assert method.net.head_module == "classifier"
    head = fb.Experiment.of(method, data, seed=SEED).beginnings["all"].private["head"]
    body = first_slot(begin(method, data).server["body"])
    course, model = Course(method, data), bert().train()
    shared, heads = plain.fedper(course, model, {**body, **head}, ROUNDS, RATE, "classifier")
    state = finish(method, data, engine)
    assert_close(first_slot(state.server["body"]), shared, body)
    for client, own in heads.items():
        assert_close(dict(state.private[client]["head"]), own)


@EACH_ENGINE
def test_pfedmb_mixes_branches_of_every_layer_as_a_plain_loop(engine: str) -> None:
    data = written()
    how = {"branches": 2, "alpha_lr": 0.5, "lr_scale": "printed"}
    method = fb.PFedMB(net_of(data), lr=RATE, batch_size=BATCH, **how)
    server = begin(method, data).server
    start = Branches({n: server[n] for n in method.layers}, first_slot(server["rest"]))
    rates = (0.5, RATE)
    shared, alphas = plain.pfedmb(Course(method, data), bert().train(), start, ROUNDS, rates)
    state = finish(method, data, engine)
    for layer, own in shared.layers.items():
        assert_close(dict(state.server[layer]), own)
    assert_close(first_slot(state.server["rest"]), shared.rest)
    for client, alpha in alphas.items():
        assert alpha.abs().max() > 1e-3
        assert_close({"value": state.private[client]["alpha"]["value"]}, {"value": alpha})


def test_the_mask_of_a_text_counts() -> None:
    data = written()
    net = net_of(data)
    params, x = {n: 20 * v for n, v in net.init(0).items()}, data.x[:4].clone()
    before = net(params, x)
    x[:, :STEPS] = torch.where(x[:, STEPS:] > 0, x[:, :STEPS], 7)  # words behind the mask
    assert torch.allclose(net(params, x), before, atol=1e-4)
    x[:, STEPS:] = 1
    assert not torch.allclose(net(params, x), before, atol=1e-2)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_transformers_model_passes_the_check_of_nets_on_both_engines(attention: str) -> None:
    data = written()
    report = fb.check_net(net_of(data, attention, dropout=0.1), data.x)
    assert report.engines == ("sequential", "vectorised"), str(report)
    assert fb.check_net(net_of(data, attention)).engines == ("sequential", "vectorised")


def test_methods_that_look_at_all_examples_bear_rows_without_any_token() -> None:
    """Padding of unequal clients is rows of zeros, whose mask lets nothing through."""
    data = written()
    for method in (fb.IFCA(net_of(data), clusters=2), fb.FedEM(net_of(data), components=2)):
        states = [finish(method, data, engine).server for engine in ENGINES]
        for name, block in states[0].items():
            assert_close(dict(block), dict(states[1][name]))


def test_a_run_of_a_transformers_model_is_stored_exported_and_predicts(tmp_path: Path) -> None:
    data = written()
    method = fb.FedPer(net_of(data), lr=RATE, batch_size=BATCH)
    run = fb.run(method, data, rounds=2, out=tmp_path / "run")
    model = fb.export_model(run.folder, 2, method=method, data=data, out=tmp_path / "m.safetensors")
    inputs, _, writer = texts()
    np.savez(tmp_path / "x.npz", **inputs, y=writer)
    predicted = fb.predict(model, tmp_path / "x.npz", method)
    ours = fb.personal(run.folder, 2, method, data).predict(data.x)
    assert predicted.probabilities == pytest.approx(torch.softmax(ours, -1).numpy(), abs=1e-5)


@pytest.mark.parametrize("widths", [None, (8,)], ids=["the net itself", "as printed"])
def test_fedmn_takes_a_transformers_model_as_its_encoder(widths: tuple[int, ...] | None) -> None:
    data = written()
    method = fb.FedMN(net_of(data), lr=RATE, batch_size=BATCH, widths=widths)
    experiment = fb.Experiment.of(method, data, seed=SEED, rounds=1)
    ends = [
        fb.run_round(experiment, experiment.start(), range(data.clients), engine)[0].server
        for engine in ENGINES.values()
    ]
    for name, block in ends[0].items():
        assert_close(dict(block), dict(ends[1][name]))


def test_adapters_train_a_transformers_model_on_both_engines(tmp_path: Path) -> None:
    data = written()
    net = fb.lora(net_of(data), rank=2, targets=("query", "value"), head="classifier")
    assert len(net.targets) == 4
    method = fb.FedAvg(net, lr=RATE, batch_size=BATCH)
    states = [finish(method, data, engine).server["model"] for engine in ENGINES]
    assert_close(first_slot(states[0]), first_slot(states[1]))
    assert fb.run(method, data, rounds=1, out=tmp_path / "run").rounds == 1


@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_a_transformers_model_is_exported(format: str, tmp_path: Path) -> None:
    """An export is compared with the run's own model before it is kept."""
    data = written()
    method = fb.FedAvg(net_of(data), lr=RATE, batch_size=BATCH)
    run = fb.run(method, data, rounds=1, out=tmp_path / "run")
    out = tmp_path / f"m.{format}"
    assert fb.export_model(run.folder, 1, format, out, method, data).is_file()


def saved_model(folder: Path) -> torch.nn.Module:
    torch.manual_seed(4)
    model = bert()
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def test_a_saved_model_is_loaded_with_its_weights(tmp_path: Path) -> None:
    model, data = saved_model(tmp_path / "model"), written()
    net = fb.Net.from_pretrained(tmp_path / "model", data.fields)
    weights = dict(model.named_parameters())
    for seed in (0, 1):
        assert all(torch.equal(value, weights[name]) for name, value in net.init(seed).items())
    assert fb.check_net(net, data.x).engines == ("sequential", "vectorised")
    wanted = plain.logits(model.eval(), weights, torch.arange(6))
    assert torch.allclose(net(net.init(0), data.x[:6]), wanted, atol=1e-6)


def test_a_new_head_of_a_saved_model_is_drawn_by_the_seed_and_the_body_kept(tmp_path: Path) -> None:
    model, data = saved_model(tmp_path / "model"), written()
    net = fb.Net.from_pretrained(tmp_path / "model", data.fields, num_labels=5)
    one, two, again = net.init(1), net.init(2), net.init(1)
    assert one["classifier.weight"].shape == (5, 16)
    assert not torch.equal(one["classifier.weight"], two["classifier.weight"])
    assert torch.equal(one["classifier.weight"], again["classifier.weight"])
    body = {n: v for n, v in model.named_parameters() if not n.startswith("classifier")}
    assert all(torch.equal(one[n], v) and torch.equal(two[n], v) for n, v in body.items())


def test_a_model_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(fb.NetError, match="there is no model") as caught:
        fb.Net.from_pretrained(tmp_path / "nowhere")
    assert "save_pretrained" in caught.value.fix
    with pytest.raises(fb.NetError, match='"classification" is no kind of model'):
        fb.Net.from_pretrained(tmp_path, model="classification")


def test_a_causal_model_predicts_the_next_token_on_both_engines() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    inputs, _, writer = texts()
    y = np.where(inputs["attention_mask"] > 0, np.roll(inputs["input_ids"], -1, 1), fb.IGNORE)
    data = fb.Federation.from_users(inputs, y, writer, classes=30, task=fb.Task("next-token"))
    config = GPT2Config(
        vocab_size=30, n_positions=STEPS, n_embd=16, n_layer=1, n_head=2, use_cache=False
    )
    net = fb.Net.of(lambda: GPT2LMHeadModel(config), inputs=data.fields, output="logits")
    assert fb.check_net(net, data.x).engines == ("sequential", "vectorised")
    method = fb.FedAvg(net, lr=RATE, batch_size=BATCH)
    states = [finish(method, data, engine).server["model"] for engine in ENGINES]
    assert_close(first_slot(states[0]), first_slot(states[1]))


def test_the_number_of_classes_is_that_of_the_labels() -> None:
    assert written().classes == CLASSES
