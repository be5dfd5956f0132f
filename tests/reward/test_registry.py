"""Which code judges what, and what that code may return."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from services.reward.config import RewardSettings
from services.reward.mixture import Part
from services.reward.routing import Routes
from services.reward.verifiers.outcome import Outcome, to_outcome
from services.reward.verifiers.registry import BUILT_IN, load_verifiers
from sluice.errors import ConfigError

NAMES = [verifier.name for verifier in BUILT_IN]


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text("def mine(item):\n    return item.response == item.ground_truth\n\nnumber = 3\n")
    (tmp_path / "broken_rules.py").write_text("raise RuntimeError('half written')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


@pytest.mark.parametrize(
    ("data_source", "verifier"),
    [
        ("math_dapo", "math_dapo"),
        ("math_dapo_reasoning", "math_dapo"),
        ("aime2024", "math_dapo"),
        ("openai/gsm8k", "gsm8k"),
        ("exact", "exact"),
        ("math_dapo_other", None),
        ("", None),
    ],
)
def test_a_data_source_leads_to_its_verifier_by_name_or_prefix(data_source: str, verifier: str | None) -> None:
    found = Routes(NAMES, {}).find(data_source)
    assert found == (None if verifier is None else (Part(verifier),))


def test_the_deployments_routes_win_and_the_longest_prefix_wins_among_prefixes() -> None:
    routes = Routes(NAMES, {"aime*": "math_dapo_boxed", "aime2025*": "exact", "*": "gsm8k"})
    assert routes.find("aime2024") == (Part("math_dapo_boxed"),)
    assert routes.find("aime2025-i") == (Part("exact"),)
    assert routes.find("anything") == (Part("gsm8k"),)
    assert routes.sources("exact") == ["aime2025*", "exact"]


def test_a_route_to_no_verifier_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"SLUICE_REWARD_ROUTES: 'sums' leads to 'adder'.*gsm8k"):
        Routes(NAMES, {"sums": "adder"})


def test_a_users_verifier_is_labelled_with_the_hash_of_its_source(user_module: Path) -> None:
    digest = hashlib.sha256(user_module.read_bytes()).hexdigest()[:8]
    assert load_verifiers(["mine=my_rules:mine"])["mine"].label == f"mine@{digest}"


@pytest.mark.parametrize(
    "entry",
    [
        "my_rules:mine",
        "mine=my_rules",
        "mine=my_rules:",
        "mine=my_rules:yours",
        "mine=my_rules:number",
        "mine=no_rules:mine",
        "mine=broken_rules:mine",
        "exact=my_rules:mine",
        "mine=builtins:len",
    ],
)
def test_a_wrong_entry_of_the_allow_list_is_refused_by_name(entry: str) -> None:
    with pytest.raises(ConfigError, match=f"SLUICE_REWARD_VERIFIERS: '{entry}'"):
        load_verifiers([entry])


def test_a_package_may_offer_a_verifier_as_an_entry_point_that_the_deployment_allows_by_name(
    tmp_path: Path,
) -> None:
    info = tmp_path / "rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sluice.verifiers]\ntheirs = my_rules:mine\n")
    assert load_verifiers(["theirs"])["theirs"].label.startswith("theirs@")
    assert "theirs" not in load_verifiers(())
    with pytest.raises(ConfigError, match="0 installed packages have an entry point"):
        load_verifiers(["ours"])


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (True, Outcome(1.0, 1.0)),
        (False, Outcome(0.0, 0.0)),
        (0.25, Outcome(0.25, 0.25)),
        (-1, Outcome(-1.0, -1.0)),
        ({"score": -1}, Outcome(-1.0, -1.0)),
        ({"score": -1, "acc": False, "extracted": 34}, Outcome(0.0, -1.0, "34")),
    ],
)
def test_a_verifier_may_return_a_bool_a_number_or_a_dict(value: object, outcome: Outcome) -> None:
    assert to_outcome(value) == outcome


@pytest.mark.parametrize(
    "value", [None, "1", float("nan"), float("inf"), {}, {"acc": 1}, {"score": 1, "pred": 2}, {"score": "1"}]
)
def test_another_result_is_refused_and_never_taken_as_a_zero(value: object) -> None:
    with pytest.raises(ValueError, match=r"verifier|finite"):
        to_outcome(value)


def test_settings_come_from_the_environment_and_faults_name_the_variable() -> None:
    settings = RewardSettings.from_environment(
        {
            "SLUICE_REWARD_VERIFIERS": "a=m:f, b=m:g",
            "SLUICE_REWARD_ROUTES": "x=y=exact,aime*=gsm8k",
            "SLUICE_REWARD_WORKERS": "",
        }
    )
    assert settings.verifiers == ("a=m:f", "b=m:g")
    assert settings.routes == {"x=y": "exact", "aime*": "gsm8k"}
    assert settings.workers >= 1
    for name, value in {"TIMEOUT_SECONDS": "0", "MEMORY_BYTES": "1", "BIND": "nowhere", "ROUTES": "x"}.items():
        with pytest.raises(ConfigError, match=f"SLUICE_REWARD_{name}={value}: "):
            RewardSettings.from_environment({f"SLUICE_REWARD_{name}": value})
