"""Every method trains a label for each step as it trains a class: alike on both engines, whatever
the padding, and with a loss that falls.
"""

import pytest

from fedblocks.testing import EXAMPLES
from fedblocks.testing.learning import training_helps
from fedblocks.testing.repeatability import engines_agree, padding
from fedblocks.testing.sequences import sequence_example
from tests.representatives import mark_others


@pytest.mark.parametrize("method", mark_others(EXAMPLES))
def test_a_method_labels_the_steps_of_sequences(method: str) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    example = sequence_example(EXAMPLES[method]())
    assert engines_agree(example) == []
    assert padding(example) == []
    assert training_helps(example) == []
