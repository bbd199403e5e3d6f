"""`aot explain`: each artifact of a reference with its verdict on one host, the nearest, and what to build instead."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.cli.missing import Command, build_command, describe_need, other_card_command
from aot.cli.output import table, weights_word
from aot.cli.unproven import Unproven, list_unproven, look_up_told, unproven_lines
from aot.cli.wrap import wrap
from aot.client.connect import open_client
from aot.config import Config
from aot.errors import AotError
from aot.nearest import Near, Need, missing, nearest
from aot.rules import Change
from aot.runtime.fetch import Resolved
from aot.runtime.pod import judge
from aot.schema.codec import Response
from aot.schema.decision import Accepted, Decision, Level, Refusal, Rejected, Selection, reasons_of
from aot.schema.digest import Digest
from aot.schema.environment import Environment, Gpu, ProcessFacts
from aot.schema.names import Name, Reference
from aot.schema.profile import Profile

LEAST_WHY = 40  # columns: where the reasons would have fewer they go below what they are about
_INDENT = " " * 4


class Nearest(Response, kw_only=True):
    """The rejected artifact that needs least: its dearest change, and every step, the cheapest first."""

    bundle: Digest
    artifact: int
    change: str
    steps: tuple[str, ...]


class MissingBuild(Response, kw_only=True):
    """The command that builds what would fit; `placeholders` say what stands for each word in capitals.

    `profile` None: no registered profile would serve this host with another build than those it cannot use.
    """

    command: str
    placeholders: dict[str, str]
    wanted: str
    profile: Name | None = None
    open_facts: tuple[str, ...] = ()
    without_card: str | None = None  # a command that makes untuned code of a bundle for another card, on any machine


class Explanation(Response, kw_only=True):
    """A Selection, field by field, and what a person does next. `profiles`: what each bundle was built for."""

    reference: Reference
    bundle: Digest | None
    artifacts: tuple[int, ...]
    decisions: tuple[Decision, ...]
    undecided: bool = False
    alternatives: tuple[Digest, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    stale: bool = False
    assumed_settings: bool = False  # what a program sets for itself was not observed: taken as torch starts
    profiles: dict[Digest, Name] = {}
    nearest: Nearest | None = None
    missing: MissingBuild | None = None
    pending: tuple[Unproven, ...] = ()  # of the same model, which nobody may load before its proof


@dataclass(frozen=True)
class Explained:
    """One reference on one host, with what its lines are made of."""

    resolved: Resolved
    selection: Selection
    environment: Environment
    near: Near | None
    need: Need | None
    command: Command | None
    pending: tuple[Unproven, ...] = ()
    without_card: Command | None = None

    def to_json(self) -> Explanation:
        selection, near, need = self.selection, self.near, self.need
        return Explanation(
            reference=self.resolved.reference,
            bundle=selection.bundle,
            artifacts=selection.artifacts,
            decisions=selection.decisions,
            undecided=selection.undecided,
            alternatives=selection.alternatives,
            refusals=selection.refusals,
            stale=self.resolved.stale,
            assumed_settings=self.environment.process == ProcessFacts(),
            profiles={digest: manifest.profile.name for digest, manifest in self.resolved.bundles},
            nearest=near
            and Nearest(
                bundle=near.decision.bundle,
                artifact=near.decision.artifact,
                change=near.change.name.lower(),
                steps=near.steps,
            ),
            missing=need
            and self.command
            and MissingBuild(
                command=self.command.line,
                placeholders=self.command.placeholders,
                wanted=describe_need(need),
                profile=need.profile.name if need.profile else None,
                open_facts=need.open_facts,
                without_card=self.without_card and self.without_card.line,
            ),
            pending=self.pending,
        )

    def lines(self, *, width: int | None = None) -> list[str]:
        profiles = {digest: manifest.profile.name for digest, manifest in self.resolved.bundles}
        gpus = self.environment.node.gpus or ()
        lines = selection_lines(self.selection, profiles=profiles, gpus=gpus, width=width)
        lines += [part for text in unproven_lines(self.pending) for part in wrap(text, width)]
        if self.command is None or self.need is None:
            return lines
        what = "what would fit" if self.selection.bundle is None else "one tuned for this host"
        lines += ["", *wrap(f"to build {what} ({describe_need(self.need)}):", width), ""]
        lines += [f"  {line}" for line in self.command.lines(width and width - 2)]
        holes = [f"{hole}: {meaning}" for hole, meaning in self.command.placeholders.items()]
        lines += ["", *(part for hole in holes for part in wrap(hole, width, indent="  "))]
        if self.without_card is None:
            return lines
        said = "or, untuned and pending until such a card has proven it, without one:"
        command = self.without_card.lines(width and width - 2)
        return [*lines, "", *wrap(said, width), "", *(f"  {line}" for line in command)]


def explain(reference: str, environment: Environment, *, config: Config, lock: Path | None = None) -> Explained:
    """Return the verdict on every artifact, and the build that is missing. Fetches no blob.

    Raises NotFound, SignatureRejected and their kin for a reference that cannot be resolved, Unavailable where neither
    registry nor cache knows it.
    """
    resolved = look_up_told(reference, lock=lock, config=config)
    selection = judge(resolved, environment)
    near = (*(nearest(selection.decisions)[:1] if selection.bundle is None else ()), None)[0]
    pending = list_unproven(resolved, config=config)
    if _is_served(selection) or not resolved.bundles:
        return Explained(resolved, selection, environment, near, None, None, pending)
    manifests = dict(resolved.bundles)
    like = near.decision.bundle if near else selection.bundle
    manifest = manifests[like] if like else resolved.bundles[0][1]
    profiles = [profile for profile in _registered(config, resolved) if not _is_in_vain(profile, resolved, selection)]
    if selection.bundle is not None:  # tuned elsewhere: only a build for this very card is better
        sku = missing(environment).sku
        profiles = [profile for profile in profiles if profile.device and profile.device.sku == sku]
    need = missing(environment, profiles=profiles)
    command = build_command(resolved.reference, manifest.spec, need)
    apart = other_card_command(resolved.reference, manifests.values(), need) if selection.bundle is None else None
    return Explained(resolved, selection, environment, near, need, command, pending, apart)


def selection_lines(
    selection: Selection,
    *,
    profiles: Mapping[Digest, Name] = {},
    gpus: Sequence[Gpu] = (),
    width: int | None = None,
) -> list[str]:
    """Every artifact with its verdict and every reason; `width` None: as long as they are.

    `profiles` and `gpus` name what the bundles were built for and the cards that a verdict is about.
    """
    lines = _table([_row(decision, profiles, gpus) for decision in selection.decisions], width)
    chosen = f"chosen: {selection.bundle}" if selection.bundle else "chosen: none, the model runs eagerly"
    others = [f"or, as load will decide: {bundle}" for bundle in selection.alternatives]
    refused = [f"not used: {refusal.bundle}: {refusal.reason}" for refusal in selection.refusals]
    near = nearest(selection.decisions)[:1] if selection.bundle is None else ()
    steps = [f"nearest: {one.decision.bundle.short}: {'; '.join(one.steps)}" for one in near]
    return [*lines, *(part for text in (*steps, chosen, *others, *refused) for part in wrap(text, width))]


_Row = tuple[dict[str, str], str, list[str]]  # which artifact, its level, why


def _row(decision: Decision, profiles: Mapping[Digest, Name], gpus: Sequence[Gpu]) -> _Row:
    verdict = decision.verdict
    if isinstance(verdict, Accepted):
        reasons = [f"note: {note.text}" for note in verdict.notes]
    else:
        reasons = [reason.text for reason in reasons_of(verdict)]
    if verdict.devices and not isinstance(verdict, Rejected):
        skus = ", ".join(dict.fromkeys(gpus[index].sku for index in verdict.devices if index < len(gpus)))
        reasons.insert(0, f"card {', '.join(map(str, verdict.devices))} of this host" + (f": {skus}" if skus else ""))
    which = {"bundle": decision.bundle.short}
    if profiles:
        which["profile"] = profiles[decision.bundle]
    which |= {
        "weights": weights_word(frozen=decision.frozen),
        "region": decision.region or "whole",
        "coverage": decision.coverage,
    }
    return which, verdict.level, reasons


def _table(rows: Sequence[_Row], width: int | None) -> list[str]:
    """One table with the reasons in its last column; where that is too narrow, the reasons below each artifact."""
    if not rows:
        return []
    header = (*rows[0][0], "verdict")
    cells = [(*which.values(), level) for which, level, _ in rows]
    room = None if width is None else width - len(max(table(header, cells), key=len)) - 2
    longest = max((len(why) for _, _, reasons in rows for why in reasons), default=0)
    if room is not None and room < min(LEAST_WHY, longest):
        return _stacked(rows, width)
    empty = ("",) * len(header)
    lines = []
    for cell, (_, _, reasons) in zip(cells, rows, strict=True):
        parts = [part for reason in reasons for part in wrap(reason, room)] or [""]
        lines += [(*(empty if index else cell), part) for index, part in enumerate(parts)]
    return table((*header, "why"), lines)


def _stacked(rows: Sequence[_Row], width: int | None) -> list[str]:
    heads = table(tuple(rows[0][0]), [tuple(which.values()) for which, _, _ in rows])
    lines = heads[:1]
    for head, (_, level, reasons) in zip(heads[1:], rows, strict=True):
        lines += [head, f"  {level}"]
        lines += [part for reason in reasons for part in wrap(reason, width, indent=_INDENT)]
    return lines


def _is_served(selection: Selection) -> bool:
    """True where something fits, or may fit once `load` knows more; not where it is only tuned elsewhere."""
    levels = {decision.verdict.level for decision in selection.decisions if decision.bundle == selection.bundle}
    return bool(levels & {Level.FITS, Level.UNDECIDED})


def _registered(config: Config, resolved: Resolved) -> tuple[Profile, ...]:
    """The registry's profiles, those with a live worker first; those of the bundles where it cannot be asked."""
    if config.url and not config.offline and not resolved.stale:
        client = open_client(config.url, config.token, timeout_seconds=config.timeout_seconds, attempts=1)
        with contextlib.suppress(AotError):
            views = client.list_profiles().profiles
            return tuple(view.profile for view in sorted(views, key=lambda view: view.live_workers == 0))
    return tuple(manifest.profile for _, manifest in resolved.bundles)


def _is_in_vain(profile: Profile, resolved: Resolved, selection: Selection) -> bool:
    """True where a build for `profile` is there already, whatever this host makes of it: equal keys mean equal builds.

    Not where all its artifacts lack what they must record, nor where it was made without the card: a new build would
    have what they lack.
    """
    built = {
        digest
        for digest, manifest in resolved.bundles
        if (manifest.profile.name, manifest.profile.capability, manifest.profile.toolchain)
        == (profile.name, profile.capability, profile.toolchain)
        and all(artifact.tuned is not False for artifact in manifest.artifacts)
    }
    decisions = [decision for decision in selection.decisions if decision.bundle in built]
    near = nearest(decisions)
    return len(near) < len(decisions) or any(one.change < Change.ARTIFACT for one in near)
