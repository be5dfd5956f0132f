"""`sluice export`: a policy version as a plain Hugging Face checkpoint, or its adapters as a folder of peft."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.connection import At, connect, wait_for
from sluice.client import RunsClient
from sluice.errors import ConfigError
from sluice.evaluation_views import best_of
from sluice.locations import HUB, model_folder
from sluice.types import PolicyVersion, Version
from sluice.views import RunView

FETCH_SECONDS = 3600.0
BEST = "best"
"""Stands for the version that is looked up."""

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|FOLDER", help="A run's id, or the folder of a version that was published.", show_default=False
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder of the checkpoint; must not hold files.", show_default=False)]
Number = Annotated[
    str | None, typer.Option("--version", metavar="vN.L", help="Which policy version; default: the newest.")
]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="Model the run started from, for config and tokenizer; default: the run's own."),
]
Adapter = Annotated[
    bool, typer.Option("--adapter", help="Write the adapters of a LoRA run alone, as `peft` loads them onto the model.")
]


Best = Annotated[
    bool, typer.Option("--best", help="The version with the best evaluation, by the run's checkpoint.keep_best.")
]


def export(  # noqa: PLR0913, PLR0917  # one parameter for each flag
    source: Source,
    out: Out,
    version: Number = None,
    best: Best = False,
    model: Model = None,
    adapter: Adapter = False,
    at: At = None,
) -> None:
    """Write a checkpoint that `transformers` loads: verified weights, config, tokenizer, chat template.

    Adapters of a LoRA run are merged into it; with --adapter they are written alone, for `peft`.
    """
    folder = Path(source)
    if folder.is_dir():
        if model is None or version is not None or best:
            raise ConfigError(
                "a folder is one version: give --model, the model that the run started from, no --version and no --best"
            )
        record = _announced_by(folder)
        wait_for(_write_adapters(record, str(model), out) if adapter else _export(record, model, out))
        return
    if best and version is not None:
        raise ConfigError(f"--best --version {version}: give one of the two")
    wait_for(_export_of_run(source, BEST if best else version, model, out, adapter, at))


async def _export_of_run(
    run_id: str, version: str | None, model: Path | None, out: Path, adapter: bool, at: str | None
) -> None:
    async with connect(at) as client:
        run, versions = await client.get(run_id), await client.versions(run_id)
        if version == BEST:
            version = await _best_version(client, run)
    published = {found.version: found for found in versions}
    if not published:
        raise ConfigError(f"run {run_id} has published no version yet")
    chosen = published.get(version or versions[-1].version)
    if chosen is None:
        raise ConfigError(
            f"--version {version}: run {run_id} published {versions[0].version} to {versions[-1].version}"
        )
    record = Version(PolicyVersion.parse(chosen.version), chosen.uri, chosen.manifest_hash, chosen.chain)
    path = str((run.spec or {})["model"]["path"])
    if adapter:
        await _write_adapters(record, str(model or path.removeprefix(HUB).partition("@")[0]), out)
    else:
        await _export(record, model or model_folder(path), out)


async def _best_version(client: RunsClient, run: RunView) -> str:
    """The policy version whose evaluation is the best by the run's own metric.

    Raises:
        ConfigError: the run names no metric, or has no such evaluation yet.
    """
    metric = (run.spec or {})["checkpoint"]["keep_best"]
    if metric is None:
        raise ConfigError(f"--best: run {run.id} keeps no best version: checkpoint.keep_best is unset in its run file")
    found = best_of(await client.evaluations(run.id), metric)
    if found is None:
        raise ConfigError(f"--best: run {run.id} has no finished evaluation with {metric} of a trained version yet")
    return found.version


async def _export(record: Version, base: Path, out: Path) -> None:
    from sluice.weights.export import export_checkpoint
    from sluice.weights.fetch import fetch_version

    with tempfile.TemporaryDirectory() as cache:
        folder, _ = await fetch_version(record, Path(cache), FETCH_SECONDS)
        manifest = await asyncio.to_thread(export_checkpoint, folder, base, out)
    size = sum(tensor.nbytes for tensor in manifest.tensors)
    print(f"{out}: {manifest.version} of {manifest.run_id}, {len(manifest.tensors)} tensors, {size / 1e6:.1f} MB")


async def _write_adapters(record: Version, base: str, out: Path) -> None:
    from sluice.weights.adapters import adapters_of, export_adapters
    from sluice.weights.fetch import fetch_manifest, fetch_version

    adapters, entry = adapters_of(record, await fetch_manifest(record, FETCH_SECONDS))
    with tempfile.TemporaryDirectory() as cache:
        folder, _ = await fetch_version(adapters, Path(cache), FETCH_SECONDS)
        manifest = await asyncio.to_thread(export_adapters, folder, entry, base, out)
    size = sum(tensor.nbytes for tensor in manifest.tensors)
    print(f"{out}: adapters of rank {entry.rank} in {manifest.version}, for {base}, {size / 1e6:.1f} MB")


def _announced_by(folder: Path) -> Version:
    """The folder as it would be announced: its manifest vouches for itself, the checksums in it for the weights."""
    from sluice.weights.manifest import MANIFEST_FILE, Manifest

    try:
        manifest = Manifest.from_json((folder / MANIFEST_FILE).read_bytes())
    except OSError:
        raise ConfigError(f"{folder}: has no {MANIFEST_FILE}, so it is no published version") from None
    return Version(manifest.version, folder.resolve().as_uri(), manifest.hash, chain="")
