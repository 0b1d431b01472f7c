"""Methods that need a net with adapters have no name in a configuration until a file gives them
one; whoever uses the name reads how.
"""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import fedblocks as fb
from fedblocks.cli.app import app
from fedblocks.config.registry import ADAPTER_METHODS


@pytest.mark.parametrize("name", sorted(ADAPTER_METHODS))
def test_the_name_of_a_method_over_adapters_is_answered_with_what_to_write(name: str) -> None:
    title = ADAPTER_METHODS[name]
    assert isinstance(getattr(fb, title), type)
    words = rf'needs a net with adapters.*METHODS\["{name}"\] = fedblocks\.{title}'
    with pytest.raises(fb.UserError, match=words):
        fb.read_config("digits-fedper", [f"method.name={name}"])
    with pytest.raises(fb.UserError, match=words):
        fb.compare("digits-fedper", [name])


def test_the_list_of_methods_ends_with_those_over_adapters() -> None:
    last = " ".join(
        CliRunner().invoke(app, ["methods"]).output.split("For a net with ")[-1].split()
    )
    assert all(name in last for name in ADAPTER_METHODS)
