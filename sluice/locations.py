"""Where data and models are: a path on this machine or a shared mount, or a hub name, fetched once to a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sluice.errors import ConfigError

HUB = "hub:"
"""Before OWNER/NAME or OWNER/NAME@REVISION; a data file may follow as OWNER/NAME/FILE."""

Kind = Literal["model", "dataset"]
_MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]


def locate(location: str, kind: Kind, knob: str) -> Path:
    """The local path of a location. What the hub holds is fetched into the cache that HF_HOME names: whole files are
    kept and checked by the hub's hash, a cut download goes on where it stopped, and progress is shown on a terminal.

    Raises:
        ConfigError: the name is malformed, or the hub does not give it: no network, no such thing, no credential.
    """
    if not location.startswith(HUB):
        return Path(location)
    name, revision, file = _parts(location, knob)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = _MODEL_FILES if kind == "model" else [file or "*"]
    try:
        folder = snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=patterns)
    except GatedRepoError:
        raise ConfigError(
            f"{knob} = {location!r}: access has to be granted; set HF_TOKEN to a token that has it"
        ) from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"{knob} = {location!r}: no such {kind}, or a private one; check the name, set HF_TOKEN"
        ) from None
    except LocalEntryNotFoundError:
        raise ConfigError(
            f"{knob} = {location!r}: not in the cache, and the hub cannot be reached; fetch it where there is a "
            "network into the folder that HF_HOME names, or give a local path"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise ConfigError(f"{knob} = {location!r}: {' '.join(str(error).split()):.200}") from None
    return Path(folder) / file if file else Path(folder)


def model_folder(path: str) -> Path:
    """Where a run's model.path is on this machine. Raises: ConfigError: as `locate`."""
    return locate(path, "model", "model.path")


def _parts(location: str, knob: str) -> tuple[str, str | None, str]:
    path, _, revision = location.removeprefix(HUB).partition("@")
    owner, _, rest = path.partition("/")
    name, _, file = rest.partition("/")
    if not owner or not name:
        raise ConfigError(
            f"{knob} = {location!r}: write {HUB}OWNER/NAME, {HUB}OWNER/NAME/FILE or either with @REVISION"
        )
    return f"{owner}/{name}", revision or None, file
