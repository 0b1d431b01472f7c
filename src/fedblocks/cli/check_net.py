"""`fedblocks check-net`: whether a net trains here as its module does in plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from fedblocks.cli.code import CodeFiles, read_code
from fedblocks.cli.output import AsJson, say, show_json, stoppable

CHECK_FAILED = 6  # exit code
DIGITS = "1,8,8"

Name = Annotated[
    str, typer.Argument(metavar="NET", help="A net: one of ours, or one that --code defines.")
]
Shape = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="SIZES",
        help=f"The shape of one example, e.g. 3,32,32; default: {DIGITS}, a small grey image.",
    ),
]
Classes = Annotated[int, typer.Option("--classes", min=2, help="How many classes.")]


def check_net(
    net: Name,
    shape: Shape = None,
    classes: Classes = 10,
    code: CodeFiles = None,
    as_json: AsJson = False,
) -> None:
    """Check that a net trains here as in plain PyTorch."""

    def action() -> None:
        from fedblocks.config.choices import make
        from fedblocks.engines.net_check.check import check_net as check
        from fedblocks.engines.net_check.trial import examples_for

        read_code(code)
        sizes = _sizes(shape or DIGITS)
        candidate = make("net", {"name": net}, input_shape=sizes, classes=classes)
        report = check(candidate, examples_for(candidate, sizes))
        if report.refusal and shape is None:
            fix = f"{report.fix}; inputs of shape {DIGITS} were tried: give --shape for others"
            report = replace(report, fix=fix)
        if as_json:
            findings = [{"says": one.says, "wrong": dict(one.wrong)} for one in report.findings]
            table = {
                "name": net,
                "findings": findings,
                "engines": report.engines,
                "refusal": report.refusal,
                "fix": report.fix,
                "unclear": report.unclear,
            }
            show_json(table)
        else:
            say(str(report))
        if "sequential" not in report.engines:
            raise typer.Exit(CHECK_FAILED)

    stoppable(action)


def _sizes(text: str) -> tuple[int, ...]:
    from fedblocks.core.errors import UserError

    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise UserError(
            f'"{text}" is not a shape', "write the sizes of one example, e.g. --shape 3,32,32"
        )
    return tuple(int(part) for part in parts)
