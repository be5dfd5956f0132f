"""`sluice export`: a policy version as a plain Hugging Face checkpoint, or its adapters as a folder of peft."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.connection import At, connect, wait_for
from sluice.errors import ConfigError
from sluice.locations import HUB, model_folder
from sluice.types import PolicyVersion, Version

FETCH_SECONDS = 3600.0

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


def export(
    source: Source, out: Out, version: Number = None, model: Model = None, adapter: Adapter = False, at: At = None
) -> None:
    """Write a checkpoint that `transformers` loads: verified weights, config, tokenizer, chat template.

    Adapters of a LoRA run are merged into it; with --adapter they are written alone, for `peft`.
    """
    folder = Path(source)
    if folder.is_dir():
        if model is None or version is not None:
            raise ConfigError(
                "a folder is one version: give --model, the model that the run started from, no --version"
            )
        record = _announced_by(folder)
        wait_for(_write_adapters(record, str(model), out) if adapter else _export(record, model, out))
    else:
        wait_for(_export_of_run(source, version, model, out, adapter, at))


async def _export_of_run(
    run_id: str, version: str | None, model: Path | None, out: Path, adapter: bool, at: str | None
) -> None:
    async with connect(at) as client:
        run, versions = await client.get(run_id), await client.versions(run_id)
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
