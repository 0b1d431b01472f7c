"""The functions of a method that a run calls: with what, and how their errors are told."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor

from fedblocks.core.errors import Explained, UserError, a_kind
from fedblocks.core.forward_errors import NOT_OF_THE_NET, ForwardNote, note_of, put_note
from fedblocks.core.net_tensors import WrongTensors
from fedblocks.core.own_code import is_library, line_of, own_name, takes

if TYPE_CHECKING:
    from fedblocks.core.method import Method

HOOKS: dict[str, tuple[str, ...]] = {
    "blocks": (),
    "predict": ("blocks", "x"),
    "phases": (),
    "loss": ("blocks", "batch"),
    "wants": ("blocks", "client"),
    "prepare": ("blocks", "client"),
    "finish": ("blocks", "start", "client"),
    "writes": ("blocks", "client"),
    "reads": ("server", "cohort"),
    "conclude": ("server", "before", "uploads", "cohort"),
    "single_uploads": ("before", "cohort"),
    "views": (),
    "adaptation": (),
    "joining": (),
    "portrait": ("blocks", "client"),
}
CORRECT = "correct it; docs/add_a_method.md says what each function is given and returns"
_MAPPED = 'use torch.where and other tensor functions, or engine = "sequential"'


def is_own(method: Method | None) -> bool:
    """Whether somebody else wrote it."""
    return method is not None and not type(method).__module__.startswith("fedblocks.")


def check_signatures(method: Method) -> None:
    """Refuse functions that cannot be called as a run calls them."""
    kind = type(method).__name__
    for name, wanted in HOOKS.items():
        hook = getattr(method, name)
        call = f"{name}({', '.join(wanted)})"
        if not callable(hook):
            raise UserError(f"{kind}.{name} is {a_kind(hook)}, not a function", f"define {call}")
        if not takes(hook, len(wanted)):
            own = f"{name}{inspect.signature(hook)}".removesuffix(" -> None")
            fix = f"write `def {name}({', '.join(('self', *wanted))}):`"
            raise UserError(f"{kind}.{own} is called as {call}", fix)


@contextmanager
def noting(method: Method | None, hook: str) -> Iterator[None]:
    """Inside, a function of a method runs: an error of people's own code leaves with a note that
    says which function it was.
    """
    try:
        yield
    except WrongTensors as error:
        raise _name_blocks(error, method, hook) from error
    except Exception as error:
        if is_own(method) and not isinstance(error, NOT_OF_THE_NET) and note_of(error) is None:
            put_note(error, describe_error(error, method, hook))
        raise


@contextmanager
def telling(method: Method, hook: str) -> Iterator[None]:
    """Inside, errors of a method's function end as UserErrors."""
    try:
        with noting(method, hook):
            yield
    except Explained:
        raise
    except Exception as error:
        raise UserError(*(note_of(error) or describe_error(error, method, hook))) from error


def describe_error(error: Exception, method: Method | None, hook: str) -> ForwardNote:
    """Which function failed, how, and in which line of people's own files."""
    reason = (str(error).splitlines() or [""])[0]
    said = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    what = f"{type(method).__name__}.{_function_of(error) or hook}"
    return ForwardNote(
        f"{what} failed: {said}{line_of(error)}", _MAPPED if "vmap" in reason else CORRECT
    )


def ask_sentences(method: Method, hook: str, *about: Any) -> list[str]:
    """What a function says that only describes, if these are sentences."""
    with telling(method, hook):
        sentences = getattr(method, hook)(*about)
    if not isinstance(sentences, list | tuple) or not all(isinstance(s, str) for s in sentences):
        where = f"{type(method).__name__}.{hook}"
        refuse_kind(where, sentences, "a list of sentences", "return a list; [] says nothing")
    return list(sentences)


def is_number(loss: Any) -> bool:
    """Whether a loss is one number, with a gradient or not."""
    return isinstance(loss, Tensor) and not loss.dim() and loss.is_floating_point()


def refuse_loss(method: Method | None, function: Callable[..., Any], loss: Any) -> NoReturn:
    """Say what came in the place of a loss."""
    where = f"{type(method).__name__}.{own_name(function).rpartition('.')[2]}"
    fix = "return one number for a batch, as batch.loss(logits) and batch.mean(losses) do"
    refuse_kind(where, loss, "a tensor of one number", fix)


def refuse_kind(where: str, value: Any, wanted: str, fix: str) -> NoReturn:
    """Say what came in the place of something."""
    what = "None" if value is None else a_kind(value)
    shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
    raise UserError(f"{where} returns {what}{shape}, not {wanted}", fix)


def _function_of(error: Exception) -> str:
    """The innermost function of people's own files that an error went through, if it is one that
    a run calls.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.name for frame in frames if not is_library(Path(frame.filename))]
    return next((name for name in reversed(own) if name in HOOKS), "")


def _name_blocks(error: WrongTensors, method: Method | None, hook: str) -> UserError:
    """The blocks of a method whose tensors a net was called without."""
    if method is None:
        return error
    names = {name: set(getattr(b.part, "names", ())) for name, b in method.blocks().items()}
    blocks = [f'"{name}"' for name, own in names.items() if own & set(error.names)]
    where = f"{type(method).__name__}.{_function_of(error) or hook}"
    if not blocks:
        nowhere = ", which no block holds" if error.names else ""
        return UserError(f"{where}: {error.message}{nowhere}", error.fix)
    word = "block" if len(blocks) == 1 else "blocks"
    message = f"{where} leaves out {word} {' and '.join(blocks)}: {error.message}"
    return UserError(message, error.fix)
