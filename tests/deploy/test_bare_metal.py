"""Units, Slurm scripts and their page agree with the code; `make bare-metal` executes them (walk_bare_metal.py)."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.trainer.launch import code_of
from sluice.local.binaries import valkey_server
from tests.servers import BIN

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
SLURM = ROOT / "deploy" / "slurm"
PAGE = (ROOT / "docs" / "bare-metal.md").read_text(encoding="utf-8")
SERVICES = ("coordinator", "reward", "rollout", "trainer")


def known_variables() -> set[str]:
    """Every variable that a service reads, and the file form of those that may be secret."""
    found: set[str] = set()
    for service in SERVICES:
        config = importlib.import_module(f"services.{service}.config")
        found |= set(config.ENVIRONMENT.values())
        from_files = (*getattr(config, "SECRETS", ()), *getattr(config, "URLS", ()))
        found |= {f"{config.ENVIRONMENT[field]}_FILE" for field in from_files}
    of_job = re.findall(r"\b(SLUICE_[A-Z_]+):=", (SLURM / "sluice.env").read_text(encoding="utf-8"))
    return found | {"SLUICE_API_URL", "SLUICE_HEAD", *of_job}


@pytest.mark.parametrize("file", [*SLURM.iterdir(), *(ROOT / "deploy/systemd").iterdir(), ROOT / "docs/bare-metal.md"])
def test_no_file_names_a_variable_that_nobody_reads(file: Path) -> None:
    named = set(re.findall(r"\bSLUICE_[A-Z_]+\b", file.read_text(encoding="utf-8")))
    assert named <= known_variables()


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_what_exists_and_not_again_when_its_settings_are_wrong(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\nRestart=always\n" in text and "\nRestartPreventExitStatus=2\n" in text
    assert "\nEnvironmentFile=/etc/sluice/sluice.env\n" in text
    module = re.search(r"^ExecStart=\S+ -m (\S+)", text, re.MULTILINE)
    if module:
        assert importlib.util.find_spec(module[1]) is not None


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    """With this machine's programs in the place of those that a host would have; elsewhere than under systemd the
    check is that each unit has its three sections."""
    places = {"/opt/sluice/.venv/bin/": f"{BIN}/", "/opt/sluice": str(ROOT), "/usr/bin/redis-server": valkey_server()}
    for path in (*UNITS, ROOT / "deploy/systemd/sluice.target"):
        text = path.read_text(encoding="utf-8")
        for there, here in places.items():
            text = text.replace(there, here)
        (tmp_path / path.name).write_text(text)
        assert "[Unit]" in text and "[Install]" in text
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        files = [str(file) for file in tmp_path.iterdir()]
        done = subprocess.run([verify, "verify", "--man=no", *files], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_slurm_scripts_are_sound_shell() -> None:
    scripts = [*SLURM.iterdir(), *(ROOT / "tests" / "deploy" / "slurm").iterdir()]
    command = [str(BIN / "shellcheck"), "--external-sources", *map(str, scripts)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_job_can_be_requeued_is_warned_before_its_end_and_takes_all_of_its_nodes() -> None:
    """Not by SIGTERM, which `scancel` sends too."""
    script = (SLURM / "sluice.sbatch").read_text(encoding="utf-8")
    directives = dict(re.findall(r"^#SBATCH (--[a-z-]+)=?(\S*)", script, re.MULTILINE))
    assert {"--requeue", "--exclusive", "--open-mode"} <= set(directives)
    assert directives["--signal"].startswith("B:USR1@")
    assert directives["--mem"] == "0"
    assert re.findall(r"\bsrun (?!.*--cpu-bind=none)", script) == []


def test_a_slurm_job_takes_no_setting_from_a_variable_of_another_program() -> None:
    """The shell that submits it has such names for its own purposes; only those of Sluice count."""
    settings = (SLURM / "sluice.env").read_text(encoding="utf-8")
    assert set(re.findall(r'"\$\{([A-Z_]+):=', settings)) == set(re.findall(r'"\$\{(SLUICE_[A-Z_]+):=', settings))
    foreign = {"HOST": "login-1", "PYTHON": "/usr/bin/python2", "MODEL": "x", "ENGINE": "x", "MASTER_PORT": "1"}
    shown = [settings_of_job(surroundings) for surroundings in ({}, foreign)]
    assert shown[0] == shown[1]
    assert Path(shown[0]["SLUICE_RUN_FILE"]).is_file()
    assert settings_of_job({"SLUICE_MODEL": "/models/mine"})["SLUICE_MODEL"] == "/models/mine"


def settings_of_job(surroundings: dict[str, str]) -> dict[str, str]:
    """What the scripts see: every variable of theirs after sluice.env."""
    done = subprocess.run(
        ["bash", "-c", 'source deploy/slurm/sluice.env; for name in "${!SLUICE_@}"; do echo "$name=${!name}"; done'],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "77", **surroundings},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_a_trainer_may_pin_memory_for_its_network() -> None:
    assert "\nLimitMEMLOCK=infinity\n" in (ROOT / "deploy/systemd/sluice-trainer.service").read_text(encoding="utf-8")


def test_the_page_says_how_to_submit_a_run_to_services_under_systemd_and_how_to_scrape_many_hosts() -> None:
    by_name = dict(re.findall(r"^## (.+)\n((?:.*\n)*?)(?=^## |\Z)", PAGE, re.MULTILINE))
    block = next(
        b for b in re.findall(r"```sh\n(.*?)```", by_name["One host, under systemd"], re.DOTALL) if "run " in b
    )
    unit = (ROOT / "deploy/systemd/sluice-coordinator.service").read_text(encoding="utf-8")
    (token,) = re.findall(r"^LoadCredential=api_token:(\S+)$", unit, re.MULTILINE)
    assert f"SLUICE_API_TOKEN_FILE={token}" in block
    (run_file,) = re.findall(r"sluice run (\S+)", block)
    assert (ROOT / run_file).is_file()
    assert "`SLUICE_METRICS_HOST`" in by_name["Many hosts"]


def test_the_page_and_the_folders_name_the_same_files() -> None:
    named = set(re.findall(r"\(\.\./deploy/slurm/([^)]+)\)", PAGE))
    assert named == {path.name for path in SLURM.iterdir()}
    for enabled in re.findall(r"^systemctl enable --now (.+)$", PAGE, re.MULTILINE):
        files = {re.sub(r"@\d+$", "@", name).removesuffix(".target") for name in enabled.split()}
        assert files == {path.stem for path in UNITS} | {"sluice"}


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (3, 3), (-9, 137)])
def test_the_launcher_ends_as_its_rank_did(code: int, expected: int) -> None:
    assert code_of(code) == expected


def test_the_launcher_hands_on_that_a_setting_is_wrong(tmp_path: Path) -> None:
    """Two real ranks under torchrun's own agent; torchrun itself would end with 1."""
    command = [sys.executable, "-m", "services.trainer.launch", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SLUICE_LEASE_SECONDS": "0", "SLUICE_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "sluice-trainer: SLUICE_LEASE_SECONDS=0: must be at least 1" in done.stderr.splitlines()
