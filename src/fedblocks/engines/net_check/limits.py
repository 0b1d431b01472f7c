"""What a module can do in plain PyTorch and not here, known by the error that torch raises then."""

from __future__ import annotations

_LIMITS = {  # a part of the error -> what is asked, and what to write
    "is not an nn.Parameter": (
        "the forward pass calls get_parameter, which plain PyTorch can and engines cannot: they "
        "put a client's own tensors in the place of the parameters",
        "read the parameter as an attribute, self.layer.weight",
    ),
    "differentiated Tensors does not require grad": (
        "the forward pass freezes a parameter (requires_grad), which plain PyTorch can and engines "
        "cannot: all parameters train",
        "use the parameter's detach() in the pass, or register it as a buffer",
    ),
}


def known_limit(error: BaseException) -> tuple[str, str] | None:
    """The message and the fix for an error, if it comes from a limit of the engines."""
    return next((said for part, said in _LIMITS.items() if part in str(error)), None)
