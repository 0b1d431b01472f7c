"""Who takes part: uniformly, by size, by a trace of who is there, or by a function of one's own."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.config.schema import config_schema
from fedblocks.core.random import generator
from fedblocks.flower.wire.sampling_check import check_sampling
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.rounds import cohort_of

SIZES = (2, 4, 40, 6, 0, 8)
pytestmark = pytest.mark.filterwarnings("ignore:.*training rows")


def prepared(*changes: str) -> Prepared:
    data = ["data.clients=6", "rounds=6", *changes]
    return prepare(fb.read_config("digits-fedavg", data))


def candidates(count: int, round: int = 0, sizes: tuple[int, ...] = SIZES) -> fb.Candidates:
    ids = list(range(len(sizes)))
    names = [f"user {i}" for i in ids]
    draw = generator(0, round, "cohort")
    return fb.Candidates(ids, np.array(sizes), names, count, round + 1, draw)


def cohorts(run: fb.RunResult) -> list[list[int]]:
    """Who was sent something, round by round."""
    query = "SELECT DISTINCT round, client FROM traffic WHERE direction = 'down' ORDER BY 1, 2"
    by_round: dict[int, list[int]] = {}
    with fb.runs.storage.folder.RunFolder.open(run.folder) as folder:
        for row in folder.store.rows(query):
            by_round.setdefault(row["round"], []).append(row["client"])
    return list(by_round.values())


def method() -> fb.Method:
    return fb.FedAvg(fb.small_net(), lr=0.1)


def test_without_a_sampler_clients_are_drawn_as_ever() -> None:
    own = prepared("cohort.size=3")
    for round in range(3):
        drawn = generator(0, round, "cohort").choice(6, 3, replace=False)
        assert cohort_of(own, round) == sorted(own.clients[i] for i in drawn)
    named = prepared("cohort.size=3", "cohort.sampler=uniform")
    assert [cohort_of(named, r) for r in range(6)] == [cohort_of(own, r) for r in range(6)]


def test_by_size_draws_clients_by_their_share_of_the_examples() -> None:
    counts = Counter(fb.SizeSampler()(candidates(1, round))[0] for round in range(3000))
    for client, size in enumerate(SIZES):
        # three standard deviations of a share of 3000 draws are below 0.03
        assert abs(counts[client] / 3000 - size / sum(SIZES)) < 0.03
    assert counts[4] == 0


def test_by_size_leaves_out_clients_without_examples_also_where_more_are_asked_for() -> None:
    assert sorted(fb.SizeSampler()(candidates(6))) == [0, 1, 2, 3, 5]


def test_a_trace_says_who_is_there_and_starts_over(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("round, client\n1,0\n1,user 3\n1,5\n3,2\n")
    sampler = fb.TraceSampler(path=str(file))
    present = [sorted(sampler(candidates(6, round))) for round in range(5)]
    assert present == [[0, 3, 5], [], [2], [0, 3, 5], []]
    assert set(sampler(candidates(2, 0))) < {0, 3, 5}
    listed = fb.TraceSampler(rounds=((0, 3, 5), (), (2,)))
    assert [sorted(listed(candidates(6, round))) for round in range(5)] == present
    assert listed(candidates(2, 3)) == sampler(candidates(2, 3))


def test_of_those_who_are_there_each_is_as_likely() -> None:
    sampler = fb.TraceSampler(rounds=((0, 3, 5),))
    counts = Counter(sampler(candidates(1, round))[0] for round in range(3000))
    assert all(abs(counts[client] / 3000 - 1 / 3) < 0.03 for client in (0, 3, 5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round,who\n1,0\n", 'no column "client"'),
        ("round,client\n", "no rows"),
        ("round,client\n0,1\n", 'line 2 of the trace .*: "0" is no round'),
        ("round,client\n1,1\nlate,1\n", 'line 3 of the trace .*"late"'),
        ("round,client\n99999999999,1\n", "is no round"),
        ("round,client\n1,9\n", 'there is no client "9" among 6'),
        ("round,client\n1,nobody\n", 'no client "nobody"'),
    ],
)
def test_a_trace_that_is_wrong_is_refused_before_the_first_round(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(fb.DataError, match=message):
        prepared(f'cohort.sampler={{name = "trace", path = "{file}"}}')


def test_a_trace_is_a_file_or_a_list() -> None:
    with pytest.raises(fb.UserError, match="either a file"):
        fb.TraceSampler()
    with pytest.raises(fb.UserError, match="cannot be read"):
        prepared('cohort.sampler={name = "trace", path = "nowhere.csv"}')
    with pytest.raises(fb.UserError, match="no sampler"):
        fb.read_config("digits-fedavg", ["cohort.sampler=by_weight"])


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_round_in_which_nobody_is_there_changes_nothing(engine: Any, tmp_path: Path) -> None:
    def play(folder: str, *rounds: tuple[int, ...]) -> fb.RunResult:
        return fb.run(
            method(), fb.small_federation(), len(rounds), tmp_path / folder, engine=engine,
            sampler=fb.TraceSampler(rounds=rounds),
        )  # fmt: skip

    some = play("some", (0, 1), (), (2, 3))
    assert cohorts(some) == [[0, 1], [2, 3]]
    curve = list(some.curves("loss"))
    assert curve[0]["test"] == curve[1]["test"] != curve[2]["test"]
    assert some.status == "finished"


def test_an_own_function_chooses_and_is_needed_again_to_go_on(tmp_path: Path) -> None:
    asked: list[int] = []

    def two_by_two(candidates: fb.Candidates) -> list[int]:
        asked.append(candidates.count)
        first = 2 * (candidates.round - 1) % 6  # rounds count from 1
        return [first, first + 1]

    data, path = fb.small_federation(), tmp_path / "own"

    def stop(done: fb.RoundDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run(method(), data, 4, path, cohort=2, sampler=two_by_two, on_round=stop)
    assert set(asked) == {2}
    with pytest.raises(fb.UserError, match='of its own, "two_by_two", which must be passed'):
        fb.resume(path, method(), data)
    with pytest.raises(fb.UserError, match=r"cohort\.sampler\.name was .*two_by_two"):
        fb.resume(path, method(), data, sampler=fb.SizeSampler())
    whole = fb.resume(path, method(), data, sampler=two_by_two)
    assert cohorts(whole) == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_a_run_that_goes_on_has_its_sampler_again(tmp_path: Path) -> None:
    data = fb.small_federation()
    whole = fb.run(method(), data, 5, tmp_path / "whole", cohort=2, sampler=fb.SizeSampler())

    def stop(done: fb.RoundDone) -> None:
        if done.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run(
            method(), data, 5, tmp_path / "cut", cohort=2, sampler=fb.SizeSampler(), on_round=stop
        )
    cut = fb.resume(tmp_path / "cut", method(), data)
    assert cohorts(cut) == cohorts(whole)
    assert list(cut.curves("loss")) == list(whole.curves("loss"))


def test_a_run_does_not_go_on_with_another_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("round,client\n1,0\n2,1\n")

    def stop(done: fb.RoundDone) -> None:
        raise KeyboardInterrupt

    sampler = fb.TraceSampler(str(file))
    data = fb.small_federation()
    with pytest.raises(KeyboardInterrupt):
        fb.run(method(), data, 2, tmp_path / "run", sampler=sampler, on_round=stop)
    file.write_text("round,client\n1,0\n2,2\n")
    with pytest.raises(fb.DataError, match="trace"):
        fb.resume(tmp_path / "run", method(), data)
    file.write_text("round,client\n1,0\n2,1\n")
    assert cohorts(fb.resume(tmp_path / "run", method(), data)) == [[0], [1]]


@pytest.mark.parametrize(
    ("chosen", "message"), [([9], "there is no client 9 among 6"), ([1, 1], "client 1 twice")]
)
def test_a_sampler_chooses_candidates_each_once(
    chosen: list[int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(fb.UserError, match=message):
        fb.run(
            method(), fb.small_federation(), 1, tmp_path / "run", sampler=lambda candidates: chosen
        )


def test_a_class_is_no_sampler() -> None:
    with pytest.raises(fb.UserError, match="not a sampler"):
        fb.run(method(), fb.small_federation(), 1, sampler=fb.SizeSampler)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Last:
    """The last ones, by a name in SAMPLERS."""

    skip: int = 0

    def __call__(self, candidates: fb.Candidates) -> list[int]:
        return list(candidates.ids)[::-1][self.skip :][: candidates.count]


def test_a_configuration_names_a_sampler_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fb.SAMPLERS, "last", Last)
    own = prepared("cohort.size=2", 'cohort.sampler={name="last", skip=1}')
    assert cohort_of(own, 0) == [3, 4]
    assert own.config.cohort.sampler is not None
    assert own.config.cohort.sampler.table == {"name": "last", "skip": 1}


def test_lanes_have_the_cohorts_that_each_has_alone(tmp_path: Path) -> None:
    """Of `compare`, whose seeds are lanes of one stack where clients are stacked."""
    settings: dict[str, Any] = {"cohort": 2, "sampler": fb.SizeSampler(), "engine": "vectorised"}
    data = fb.small_federation()
    both = fb.compare([method()], data, rounds=3, seeds=2, out=tmp_path / "both", **settings)
    for seed, run in both.runs["fedavg"].items():
        alone = fb.run(method(), data, 3, tmp_path / str(seed), seed=seed, **settings)
        assert cohorts(run) == cohorts(alone)


def test_the_schema_knows_samplers() -> None:
    named = config_schema()["$defs"]["CohortSection"]["properties"]["sampler"]
    assert set(named["anyOf"][0]["enum"]) >= {"uniform", "by_size", "trace"}


def test_a_federation_refuses_rounds_with_too_few_clients() -> None:
    sampler = 'cohort.sampler={name="trace", rounds=[[0, 1], [2]]}'
    check_sampling(prepared(sampler, "cohort.size=1"))
    with pytest.raises(fb.UserError, match="round 2 has 1 client of 2"):
        check_sampling(prepared(sampler, "cohort.size=2"))


def test_the_server_of_a_federation_does_not_know_sizes() -> None:
    from fedblocks.flower.wire.run_spec import shape_of

    config = fb.read_config(
        "digits-fedavg",
        [
            'data={name="remote", clients=6, options={input_shape=[1, 8, 8], classes=10}}',
            "cohort.sampler=by_size",
        ],
    )
    with pytest.raises(fb.UserError, match="does not know how many examples"):
        check_sampling(prepare(config, shape_of(config)))
