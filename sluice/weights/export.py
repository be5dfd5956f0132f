"""A published policy version as a Hugging Face checkpoint: its weights, and everything else of the model it began as.

Versions are plain safetensors under the names that `transformers` uses, so nothing is converted. Tied weights are
stored once, and tied again by the model's config when the checkpoint is loaded.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.errors import ConfigError
from sluice.weights.manifest import INDEX_FILE, MANIFEST_FILE, Manifest

PROVENANCE_FILE = "sluice_manifest.json"
"""The version's manifest: run, version, config hash and the checksum of every tensor."""

_BESIDE_THE_WEIGHTS = ("*.json", "*.jinja", "*.model", "*.txt", "*.py", "LICENSE*")
_NOT_OF_THE_MODEL = (INDEX_FILE, MANIFEST_FILE, PROVENANCE_FILE, "fingerprint.json")
_DTYPES = {"BF16": "bfloat16", "F32": "float32"}


def export_checkpoint(version: Path, base: Path, out: Path) -> Manifest:
    """Write `out`, complete or not at all.

    Args:
        version: folder of a published version, already verified.
        base: folder of the model that the run started from: config, tokenizer, chat template, licence.
        out: must not exist, or be empty.

    Raises:
        ConfigError: `out` holds files, `base` is no model, or the disk does not take the checkpoint.
    """
    manifest = Manifest.from_json((version / MANIFEST_FILE).read_bytes())
    if not (base / "config.json").is_file():
        raise ConfigError(f"model folder {base}: has no config.json; name the model the run started from with --model")
    with new_folder(out) as staging:
        _copy_base(base, staging, manifest)
        for file in [*manifest.files, INDEX_FILE]:
            shutil.copyfile(version / file, staging / file)
        shutil.copyfile(version / MANIFEST_FILE, staging / PROVENANCE_FILE)
    return manifest


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which is `out` in the end, or nothing.

    Raises:
        ConfigError: `out` holds files, or the disk does not take more.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: is there already, with files in it; choose another folder")
    staging = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        staging.mkdir(parents=True)
        yield staging
        if out.exists():
            out.rmdir()
        os.rename(staging, out)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy_base(base: Path, staging: Path, manifest: Manifest) -> None:
    for pattern in _BESIDE_THE_WEIGHTS:
        for file in base.glob(pattern):
            if file.name not in _NOT_OF_THE_MODEL:
                shutil.copyfile(file, staging / file.name)
    config: dict[str, Any] = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = _DTYPES[manifest.tensors[0].dtype]
    (staging / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
