"""What stands on the page of the suite besides numbers."""

from __future__ import annotations

HEAD = """# The suite: a standard test of methods

Made by `docs/generate.py` from `results/suite-*.json`, which `fedblocks suite` writes; do not edit.

```
fedblocks suite fedper --lite                  # packaged digits, 2 seeds: 2 minutes on 2 cores
fedblocks suite fedper                         # all beds whose data are there, 6 seeds
fedblocks suite mine --code mine.py --tuned    # your own method; tuned rows beside default ones
fedblocks suite fedper --held-out              # other clients and splits
fedblocks suite --list                         # beds, data, cost
fedblocks suite --plan --budget 10m --jobs 16  # what is missing, and what of it fits
fedblocks suite --merge there/results/*.json   # join results of another machine
```

Suite {version}, manifest `{manifest}`.

## How much of it was run

{coverage}

## What a number means

- **Beds** are small federations of real data with a fixed net and budget. A bed whose data are
  absent is named and left out; means and ranks then speak of the beds that are left, and a method
  that was not run on all of those has none.
- **A seed** is everything at once: which clients are drawn, how their rows are split, the first
  model, batches, cohorts. All methods have the same seeds, so differences are paired.
- **Defaults.** A method runs with its own defaults. Rounds, local epochs, batches of {batch}
  and the learning rate are the bed's. The rate is the smallest of 0.1, 0.3, 1 and 3 with which
  Local and FedAvg, in their mean, validate within a point of the best, on a seed that no report
  has; a method with a default rate of its own keeps it. No bed tells cohorts, so ModFL has to
  find them (`cohorts = "found"`).
- **Tuned** rows: 8 settings for every method, its defaults and 7 drawn from a declared space of
  at most 4 options, all for a fifth of the rounds, 3 for half, the best in full, on the
  validation data of a seed of its own. Then the report's seeds. They are compared with tuned
  references.
- **Accuracy** is that of the last round on test data, every client counts the same; ± is
  Student's 95 % interval over seeds.
- **Differences** to Local, FedAvg and FedAvg+ are in points, with 95 % intervals: bootstrap of
  seeds and of clients within them, never narrower than Student's over seeds. Below six seeds
  there is no verdict.
- **Error less than FedAvg+'s**: the share of FedAvg+'s error that is gone, in %, clipped to
  ±100. It needs no other method, so it does not move when methods are added.
- **Rank**: the place among a frozen panel of eight (Local, FedAvg, FedAvg+, Ditto, FedRep,
  APFL, IFCA, FedEM), each method alone against it.
- **Fewer answers**: the share of clients that a method harms: they have more than one right
  answer fewer than with Local, or FedAvg.
- **New clients** never trained; they join as the method says, and are tested on their own test
  data.
- **MB**: bytes both ways for a client in all rounds. Seconds are of one core and only a hint.
- A method that **fails** on a bed counts as Local there, and is marked. A worker that is
  **killed** from outside, as by a machine without memory, is no failure: the run is tried once
  more, then noted as killed, without a score, and the next call takes it up again.
- **Your own method** enters by the entry point `fedblocks.methods` or by `--code`. An attribute
  `space` of the class (option -> values, at most three besides the rate) says what is tuned.
  Each version of its source has results of its own, and the command says how many versions have
  been tried.
- **A method of our own**, which shares each module with whom first updates suggest, was tried and
  is not above the others: [what was learned](methods/modfl.md#who-shares-which-module).
- **In pieces.** Every run is stored as soon as it is done, and nothing is run twice. `--plan`
  names the rows that are missing in the order in which they are run, defaults on every bed
  first, with minutes as stored runs suggest. `--merge` joins files of several machines; two
  numbers for the same run are refused by name, and then nothing is written. Stored runs of other
  settings than today's are named stale, dropped and run again.
- There is no critical-difference diagram: with 35 methods on 7 beds methods would have to be 21
  ranks apart.

## Beds
"""

BEDS_HEAD = """
| bed | what | data set | clients + new | net | rounds x epochs | rate | seconds | seed 0 |
|---|---|---|---|---|---|---|---|---|"""

COLUMNS = (
    "| method | accuracy, % | to Local | to FedAvg | to FedAvg+ | error less than FedAvg+'s, % | "
    "rank | fewer answers than Local, % | than FedAvg, % | bottom decile, % | new clients, % | "
    "MB | s | machine |"
)
MACHINES_HEAD = """## Machines

Equal settings on two kinds of processors differ by up to 2 points on a single seed. A row with one
letter is of one kind of machine; A+B has seeds of both, and differences between rows of unlike
letters contain that, too. Where the processor was not noted one letter may stand for several kinds.
"""
SEEDS_ARE_FEW = "{seeds} are the aim: with fewer, intervals are wide and nothing is called better."
