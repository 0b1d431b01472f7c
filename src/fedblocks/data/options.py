"""Options that several data sets, partitions and test-beds have in common, and their check."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Annotated, Literal, ParamSpec, TypeVar

from fedblocks.core import checks
from fedblocks.core.errors import DataError, nearest
from fedblocks.core.options import AtLeast, AtMost, Below, Help, Positive
from fedblocks.data.splits import Fractions

P = ParamSpec("P")
T = TypeVar("T")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function on data that refuses wrong values of the options that its signature describes.

    A DataError: a client tells the server no more of it than that its data cannot be used.
    """
    careful = checks.checked(function)

    @wraps(function)
    def on_data(*args: P.args, **named: P.kwargs) -> T:
        try:
            return careful(*args, **named)
        except checks.OptionError as error:
            raise DataError(error.message, error.fix) from error

    return on_data


def known_options(function: Callable[P, T]) -> Callable[P, T]:
    """A function that refuses an option which it has not, and says which one was meant."""
    known = [name for name in signature(function).parameters if name not in ("self", "cls")]

    @wraps(function)
    def careful(*args: P.args, **named: P.kwargs) -> T:
        unknown = next((name for name in named if name not in known), None)
        if unknown is not None:
            raise DataError(f'there is no option "{unknown}"', nearest(unknown, known))
        return function(*args, **named)

    return careful


Seed = Annotated[int, AtLeast(0), Help("of what is drawn at random")]
Shares = Annotated[Fractions, AtLeast(0), AtMost(1), Help("shares that train, validate and test")]

# of partitions and test-beds
Clients = Annotated[int, AtLeast(1), Help("how many clients")]
Alpha = Annotated[
    float, Positive(), Help("of the Dirichlet draw: smaller is more skewed", usual="0.1 to 1")
]
CoarseAlpha = Annotated[float, Positive(), Help("of the draw over coarse labels", usual="0.4")]
FineAlpha = Annotated[
    float, Positive(), Help("of the draw over the fine labels of a coarse one", usual="10")
]
UsedFraction = Annotated[float, Positive(), AtMost(1), Help("of the rows that is used")]
MinSize = Annotated[int, AtLeast(0), Help("rows that every client has at least")]
Tries = Annotated[int, AtLeast(1), Help("draws until everybody has enough")]
Size = Annotated[
    int | None, AtLeast(1), Help("rows of each client; default: as many as there are for everybody")
]
ClassesEach = Annotated[int, AtLeast(1), Help("classes that a client holds")]
Low = Annotated[float, Positive(), Help("the smallest weight of a holder")]
High = Annotated[float, Positive(), Help("the largest weight of a holder")]
Fraction = Annotated[
    float, Positive(), AtMost(1), Help("of the rows of each class, for quick trials")
]
Validation = Annotated[
    float,
    AtLeast(0),
    Below(1),
    Help("share of the training rows that is set aside", usual="0.25 for tuning"),
]

# of windows of signals
WindowSteps = Annotated[int, AtLeast(1), Help("time steps of a window")]
Overlap = Annotated[
    float, AtLeast(0), Below(1), Help("share of a window that the next one repeats")
]
Stretch = Annotated[
    float, Positive(), Help("seconds of a recording that go to one part together, at most")
]

# of texts
Unit = Annotated[
    Literal["word", "character"], Help("what is predicted: the next word, or the next character")
]
Words = Annotated[int, AtLeast(1), Help("size of the vocabulary", usual="10000")]
Buckets = Annotated[
    int, AtLeast(1), Help("numbers that words outside the vocabulary share; FedRecon: 500")
]
SequenceSteps = Annotated[int, AtLeast(1), Help("words of a sequence")]
