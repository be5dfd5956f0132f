"""What is evaluated: a model folder, or a published policy version over the model that its run started from."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ConfigError, WeightError
from sluice.locations import locate
from sluice.types import Version
from sluice.weights.export import export_checkpoint
from sluice.weights.fetch import verify_version
from sluice.weights.manifest import MANIFEST_FILE, Manifest


@dataclass(frozen=True, slots=True)
class Subject:
    """`base` has config and tokenizer, and the weights too unless `version` names others, which lie in `folder`."""

    folder: Path
    base: Path
    version: Version | None

    @property
    def name(self) -> str:
        return self.folder.name if self.version is None else f"{self.base.name}-{self.version.version}"

    @property
    def weight_version(self) -> str:
        """What an engine that is started with it says that it serves; of a model, the word that engines use unasked."""
        return "default" if self.version is None else str(self.version.version)

    def weights(self) -> str:
        """What identifies the weights on this machine: by content, since folders are written again.

        Raises:
            ConfigError: there are none, or they cannot be read.
        """
        if self.version is not None:
            return f"{self.version.version} {self.version.manifest_hash}"
        digest = hashlib.sha256()
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"{self.folder}: has no *.safetensors; give a model folder, or servers with --engine")
        for file in files:
            with file.open("rb") as shard:
                digest.update(hashlib.file_digest(shard, "sha256").digest())
        return f"sha256 {digest.hexdigest()}"

    def checkpoint(self, staging: Path) -> Path:
        """A folder that an engine loads: the model folder itself, or one made in `staging`, every checksum verified.

        Raises:
            WeightError, TransientError: the version's bytes are not those of its manifest, or not all there.
            ConfigError: `base` is no model, or the disk is full.
        """
        if self.version is None:
            return self.folder
        verify_version(self.folder, self.version)
        shutil.rmtree(staging, ignore_errors=True)  # of an evaluation that was killed
        export_checkpoint(self.folder, self.base, staging)
        return staging


def find_subject(place: str, model: str | None) -> Subject:
    """A model folder, `hub:OWNER/NAME`, or the folder of a published version with `model`, which its run started from.

    Raises:
        ConfigError: neither is there, or a version comes without `model`, or a model with it.
    """
    folder = locate(place, "model", "MODEL")
    if not folder.is_dir():
        raise ConfigError(f"{place}: no such folder; give a model folder or the folder of a published version")
    manifest = _manifest(folder)
    if manifest is None and model is not None:
        raise ConfigError(f"--model {model}: {place} is a model itself; --model only goes with a published version")
    if manifest is None:
        return Subject(folder, folder, None)
    if model is None:
        raise ConfigError(
            f"{place}: is a published version, only weights; name the model its run began as with --model"
        )
    version = Version(manifest.version, folder.resolve().as_uri(), manifest.hash, chain="")
    return Subject(folder, locate(model, "model", "--model"), version)


def _manifest(folder: Path) -> Manifest | None:
    """The manifest vouches for itself here; the checksums in it vouch for the weights."""
    file = folder / MANIFEST_FILE
    if (folder / "config.json").is_file() or not file.is_file():
        return None
    try:
        return Manifest.from_json(file.read_bytes())
    except WeightError as error:
        raise ConfigError(
            f"{folder}: is neither a model nor a published version ({error}); the weights of a trainer's checkpoint k "
            "are those of the published version k"
        ) from None
