"""`fedblocks federation`: a federation of real processes, on this machine or on several."""

from __future__ import annotations

import typer

from fedblocks.cli import federated_runs, hosts, keys, rotation
from fedblocks.cli.help import Command

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("local", cls=Command)(federated_runs.local)
app.command("simulate", cls=Command)(federated_runs.simulate)
app.command("init", cls=Command)(keys.init)
app.command("join", cls=Command)(keys.join)
app.command("enrol", cls=Command)(keys.enrol)
app.command("revoke", cls=Command)(keys.revoke)
app.command("rotate", cls=Command)(rotation.rotate)
app.command("renew", cls=Command)(rotation.renew)
app.command("keys", cls=Command)(keys.table)
app.command("server", cls=Command)(hosts.server)
app.command("client", cls=Command)(hosts.client)
app.command("run", cls=Command)(federated_runs.run)
app.command("status", cls=Command)(hosts.status)
app.command("stop", cls=Command)(hosts.stop)
app.command("adapt", cls=Command)(hosts.adapt)
