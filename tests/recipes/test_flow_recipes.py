"""Flow's recipes: one budget for nine methods, and three scores of words from one evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks.config.model import Config
from fedblocks.data.federation import Federation
from fedblocks.data.sets.text import Corpus, score_variants
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.nets.text import next_word
from fedblocks.recipes import recipe_named
from fedblocks.recipes.measures import measure
from fedblocks.runs.run import run

WORDS, BUCKETS = 15, 5
WIDTHS = {"embedding": 8, "hidden": 12, "projection": 8}


@pytest.fixture(scope="module")
def texts() -> Federation:
    """Four users who write at random, rare words being unknown."""
    rng = np.random.Generator(np.random.PCG64(0))
    users = {
        f"user-{u}": [[f"w{int(i)}" for i in rng.zipf(1.5, 9) % 40] for _ in range(12)]
        for u in range(4)
    }
    corpus = Corpus.in_time_order(users, (0.6, 0.2, 0.2), {"name": "made_up"})
    return corpus.pool(corpus.vocabulary(WORDS, BUCKETS), 6).federation()


def experiment(
    texts: Federation, name: str, buckets: int | None = None, **options: Any
) -> Experiment:
    net = next_word((6,), texts.classes, **WIDTHS, buckets=buckets)
    return Experiment.of(METHODS[name](net, lr=0.3, batch_size=4, **options), texts, 0)


def test_table_1_has_nine_methods_on_two_data_sets_with_one_budget() -> None:
    cells = recipe_named("flow-table1").cells
    assert len(cells) == 18 and {cell.key: cell.published for cell in cells}["reddit/flow"] == 19.36
    budgets = {
        (c.config["rounds"], c.config["cohort"]["size"], c.config["method"]["batch_size"])
        for c in cells
    }
    assert budgets == {(2000, 10, 16)} and {len(cell.points()) for cell in cells} == {3}


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()], ids=["sequential", "vectorised"])
@pytest.mark.parametrize("method", ["fedavg", "flow"])
def test_one_evaluation_counts_words_in_three_ways(
    texts: Federation, method: str, engine: Any
) -> None:
    own = experiment(texts, method)
    state, _ = run_round(own, own.start(), range(4), engine)
    actual = evaluate(own, state, range(4), engine)
    for score, scored in score_variants(texts).items():
        # the same labels left out
        expected = evaluate(experiment(scored, method), state, range(4), engine)["personal"]
        view = actual["personal" if score == "all" else f"personal_{score}"]
        assert [view[c] for c in range(4)] == [pytest.approx(expected[c]) for c in range(4)]


def test_labels_that_are_no_words_are_counted_in_one_way() -> None:
    from fedblocks.data import digits
    from fedblocks.data.partitions import iid
    from fedblocks.nets import NETS

    x, y = digits()
    data = Federation.from_arrays(x[:80], y[:80], iid(y[:80], 2))
    own = Experiment.of(METHODS["fedavg"](NETS["mlp"]((1, 8, 8), 10)), data)
    assert list(evaluate(own, own.start(), range(2), Sequential())) == ["personal"]


def test_fedrecon_reconstructs_the_table_of_unknown_words_only(texts: Federation) -> None:
    own = experiment(texts, "fedrecon", BUCKETS, local="embedding.oov", recon_lr=0.1)
    method = own.methods["all"]
    assert method.personal.names == ("embedding.oov.weight",)  # type: ignore[attr-defined]
    start = own.start()
    state, _ = run_round(own, start, range(4), Vectorised())
    assert set(start.server["shared"]) == set(method.net.names) - {"embedding.oov.weight"}
    assert (
        start.server["shared"]["embedding.words.weight"].shape[1:] == (WORDS + 3, 8)
        and not state.private
    )


def test_an_embedding_in_two_tables_reads_as_one(texts: Federation) -> None:
    import torch

    one, two = (next_word((6,), texts.classes, **WIDTHS, buckets=b) for b in (None, BUCKETS))
    split = two.init(0)
    whole = torch.cat([split.pop("embedding.words.weight"), split.pop("embedding.oov.weight")])
    x = texts.x[:20]
    assert (x >= WORDS + 3).any()
    assert torch.equal(one({"embedding.weight": whole, **split}, x), two(two.init(0), x))


def test_fedprox_is_tried_after_local_training_where_that_is_asked_for(texts: Federation) -> None:
    tuned, reference = (
        experiment(texts, "fedprox", strength=0.0, tune_epochs=1),
        experiment(texts, "fedavg_ft"),
    )
    state, plain = tuned.start(), experiment(texts, "fedprox", strength=0.0)
    actual = [
        evaluate(own, state, [0], Sequential())["personal"][0] for own in (tuned, reference, plain)
    ]
    assert actual[0] == pytest.approx(actual[1]) and actual[0][2] < actual[2][2]


def test_lg_fedavg_without_state_tunes_averaged_lower_layers_before_a_test(
    texts: Federation,
) -> None:
    own = experiment(texts, "lg_fedavg", top_layers=2, local_layers="derived")
    average = experiment(texts, "fedavg")
    state, _ = run_round(own, own.start(), range(4), Sequential())
    same, _ = run_round(average, average.start(), range(4), Sequential())
    joined = {**state.server["bottom"], **state.server["top"]}
    assert (
        all((joined[k] - v).abs().max() < 1e-6 for k, v in same.server["model"].items())
        and not state.private
    )
    before, after = (
        evaluate(average, same, [0], Sequential()),
        evaluate(own, state, [0], Sequential()),
    )
    assert after["personal"][0][2] < before["personal"][0][2]


def test_a_run_logs_the_three_scores_and_the_mean_of_its_last_rounds(
    texts: Federation, tmp_path: Path
) -> None:
    texts.save(tmp_path / "texts.npz")
    table = {
        "rounds": 4,
        "device": "cpu",
        "data": {"name": "saved", "options": {"path": str(tmp_path / "texts.npz")}},
        "net": {"name": "next_word", "embedding": 8, "hidden": 12, "projection": 8},
        "method": {"name": "fedavg", "lr": 1.0, "batch_size": 4},
    }
    actual = run(Config.of(table), tmp_path / "run")
    scores = measure(actual, {"name": "word_accuracy"})
    assert scores.keys() == {"value", "without_oov", "without_oov_and_eos"}
    assert scores["value"] == pytest.approx(100 * (actual.summary("test")["mean"] or 0), abs=1e-4)
    assert scores["without_oov"] == pytest.approx(
        100 * (actual.summary("test", "personal_without_oov")["mean"] or 0), abs=1e-4
    )
    late = measure(actual, {"name": "late_validation_accuracy", "rounds": 2})
    assert late["rounds"] == [1, 2, 3, 4] and late["value"] == pytest.approx(
        sum(late["accuracy"][2:]) / 2, abs=1e-3
    )
