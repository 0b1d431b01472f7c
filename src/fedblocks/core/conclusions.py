"""What methods conclude at the end of a round. The server's work is one, whatever groups its
clients are in: groups of one method conclude together, from what all of them sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedblocks.core.blocks import NOT_ON_THE_SERVER, server_name
from fedblocks.core.errors import UserError
from fedblocks.core.hooks import noting
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.server import Cohort, own_server
from fedblocks.core.state import State
from fedblocks.core.trees import concatenate, in_order, is_close, take
from fedblocks.core.uploads import Upload, Uploads

Methods = Mapping[str, Method]  # by group
_ROUNDING = 1e-5  # of the largest number of a tensor


def conclude(
    methods: Methods,
    before: State,
    after: State,
    groups: Mapping[str, Uploads],
    cohorts: Mapping[str, Cohort],
) -> State:
    """What each method makes of its blocks once they are reduced; of nobody's uploads, nothing."""
    server = dict(after.server)
    for party in parties(methods):
        present = [group for group in party if group in groups and len(cohorts[group])]
        if present:
            uploads = _join_uploads([groups[group] for group in present])
            cohort = _join_cohorts([cohorts[group] for group in present])
            changed = _concluded(methods, present, before.server, server, uploads, cohort)
            _refuse_foreign(methods, party, changed)
            server |= changed
    return replace(after, server=server)


def parties(methods: Methods) -> list[list[str]]:
    """The groups that conclude together: those of one method that have blocks in common, or, of a
    method that says so, all blocks.
    """
    joined: list[tuple[type[Method], set[str], list[str]]] = []
    for group, method in methods.items():
        kind, names = type(method), {*_server_names(method).values()}
        if kind.conclude is Method.conclude:
            continue
        alike = [party for party in joined if party[0] is kind and _belongs(kind, names, party[1])]
        joined = [party for party in joined if party not in alike]
        members = [member for party in alike for member in party[2]]
        joined.append((kind, names.union(*(party[1] for party in alike)), [*members, group]))
    return [members for *_, members in joined]


def _belongs(kind: type[Method], names: set[str], others: set[str]) -> bool:
    return names == others if kind.concludes_apart else bool(names & others)


def _concluded(
    methods: Methods,
    present: Sequence[str],
    before: Blocks,
    server: Blocks,
    uploads: Uploads,
    cohort: Cohort,
) -> Blocks:
    """The blocks that those of a party who took part change, by their names on the server."""
    first, *others = present
    changed = _changes(methods[first], before, server, uploads, cohort)
    for other in others:
        if not _has_same_options(methods[first], methods[other]):
            again = _changes(methods[other], before, server, uploads, cohort)
            _refuse_unlike(methods[first], (first, changed), (other, again))
    return changed


def _changes(
    method: Method, before: Blocks, server: Blocks, uploads: Uploads, cohort: Cohort
) -> Blocks:
    layout = method.blocks()
    old, new = own_server(layout, before), own_server(layout, server)
    with noting(method, "conclude"):
        concluded = method.conclude(new, old, uploads, cohort)
    return {
        server_name(n, layout[n]): in_order(v) for n, v in concluded.items() if v is not new.get(n)
    }


def _server_names(method: Method) -> dict[str, str]:
    """What the method's blocks on the server are called there."""
    return {
        name: server_name(name, block)
        for name, block in method.blocks().items()
        if not isinstance(block, NOT_ON_THE_SERVER)
    }


def _refuse_foreign(methods: Methods, party: Sequence[str], changed: Blocks) -> None:
    """Refuse a conclusion on blocks that clients write whose uploads it did not see."""
    if type(methods[party[0]]).concludes_apart:
        return
    for group, method in methods.items():
        common = sorted(changed.keys() & {*_server_names(method).values()})
        if group not in party and common:
            name = type(methods[party[0]]).__name__
            raise UserError(
                f'{name}.conclude changes block "{common[0]}" by what clients of group '
                f'"{party[0]}" sent, and group "{group}" has this block, too',
                "give both groups the same method with the same blocks on the server, or other "
                "names to the blocks (Shared(part, name=...))",
            )


def _has_same_options(one: Method, other: Method) -> bool:
    try:
        return bool(one.options() == other.options())
    except (RuntimeError, TypeError, ValueError):  # of tensors or arrays
        return False


def _refuse_unlike(method: Method, one: tuple[str, Blocks], other: tuple[str, Blocks]) -> None:
    (first, mine), (second, theirs) = one, other
    if not _is_same(mine, theirs):
        raise UserError(
            f'groups "{first}" and "{second}" share blocks, and {type(method).__name__}.conclude '
            "makes other things of the same uploads with the options of each",
            "give both groups the same options for what the server does",
        )


def _is_same(one: Blocks, other: Blocks) -> bool:
    """Whether two conclusions differ by rounding at most."""
    if {n: b.keys() for n, b in one.items()} != {n: b.keys() for n, b in other.items()}:
        return False
    pairs = [(value, other[n][k]) for n, block in one.items() for k, value in block.items()]
    return all(is_close(a, b, _ROUNDING) for a, b in pairs)


class CommonUploads(Uploads):
    """What several groups sent of the blocks that all of them have."""

    def __missing__(self, name: str) -> Upload:
        raise UserError(
            f'what clients sent of "{name}" was asked for, which groups that conclude together do '
            "not have in common",
            "give the groups the same blocks on the server, or none in common",
        )


def _join_uploads(groups: Sequence[Uploads]) -> Uploads:
    """What groups sent of the blocks that they have in common, as that of one group."""
    if len(groups) == 1:
        return groups[0]
    first, *others = groups
    common = [
        name
        for name, upload in first.items()
        if all(name in other and other[name].name == upload.name for other in others)
    ]
    return CommonUploads({name: join([uploads[name] for uploads in groups]) for name in common})


def join(uploads: Sequence[Upload]) -> Upload:
    """Uploads of one block as one, clients in the order of their ids."""
    if len(uploads) == 1:
        return uploads[0]
    ids = torch.cat([upload.ids for upload in uploads])
    order = ids.argsort()
    copies: Params = take(concatenate([upload.copies for upload in uploads]), order)
    lanes = tuple(map(sum, zip(*(upload.lanes for upload in uploads), strict=True)))
    weights = torch.cat([upload.weights for upload in uploads])[order]
    return replace(uploads[0], ids=ids[order], copies=copies, weights=weights, lanes=lanes)


def _join_cohorts(cohorts: Sequence[Cohort]) -> Cohort:
    """Clients of several groups as one cohort, in the order of their ids."""
    if len(cohorts) == 1:
        return cohorts[0]
    joined = replace(
        cohorts[0],
        ids=torch.cat([cohort.ids for cohort in cohorts]),
        sizes=torch.cat([cohort.sizes for cohort in cohorts]),
        tags=concatenate([cohort.tags for cohort in cohorts]),
    )
    return joined.take(joined.ids.argsort())
