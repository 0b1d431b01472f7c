"""What a check of a net says: each property on each engine, or why the net is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedblocks.core.errors import NetError
from fedblocks.core.net import Net

NOT_TRUE = "this does not hold"
ENGINES = ("sequential", "vectorised")


@dataclass(frozen=True)
class Finding:
    """One property of a net."""

    says: str  # a sentence that should be true
    wrong: Mapping[str, str]  # engine -> why it is not

    def lines(self) -> list[str]:
        """For people: one line where both engines are right."""
        if not self.wrong:
            return [f"right   {self.says}"]
        by_engine = [f"          {e}: {self.wrong.get(e, 'right')}" for e in ENGINES]
        return [f"WRONG   {self.says}", *by_engine]


@dataclass(frozen=True)
class NetReport:
    """All properties; of a refused net only the reason."""

    findings: tuple[Finding, ...] = ()
    refusal: str = ""
    fix: str = ""
    unclear: str = ""  # why nothing could be said
    remark: str = ""  # what is right and hardly meant

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines on which everything is right."""
        if self.refusal:
            return ()
        return tuple(
            engine for engine in ENGINES if not any(engine in one.wrong for one in self.findings)
        )

    def why_not(self, engine: str) -> str:
        """The first thing that is wrong on an engine; empty: nothing."""
        wrong = [
            f"{NOT_TRUE}: {one.says}: {one.wrong[engine]}"
            for one in self.findings
            if engine in one.wrong
        ]
        return self.refusal or next(iter(wrong), "")

    def require(self, engine: str) -> None:
        """Raise what is wrong on an engine."""
        if engine in self.engines:
            return
        if self.refusal:
            raise NetError(self.refusal, self.fix)
        fix = "change the module; `check_net` shows all"
        if self.engines:
            fix = f'use engine = "{self.engines[0]}"'
        raise NetError(f"the net would not train as in plain PyTorch; {self.why_not(engine)}", fix)

    def __str__(self) -> str:
        if self.refusal:
            return f"refused: {self.refusal}\n  fix: {self.fix}"
        if self.unclear:
            return f"could not be checked: {self.unclear}"
        lines = [line for one in self.findings for line in one.lines()]
        lines += [f"note    {self.remark}"] if self.remark else []
        return "\n".join([*lines, f"right on: {', '.join(self.engines) or 'no engine'}"])


def precision_note(net: Net) -> str:
    """What to know of a module that is made with more digits than it trains with."""
    if not net.loses_digits:
        return ""
    kind = str(net.dtype).removeprefix("torch.")
    return (
        f"the net {type(net.template).__name__} is made in float64 and trains in {kind}: "
        f"Net.of(..., dtype=torch.float64) keeps its digits"
    )
