"""Where a secret of a deployment may come from, and that no line shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cli import main
from sluice.environment import read_settings
from sluice.errors import ConfigError
from sluice.secrets import PERCENT_ENCODE, read_secret, redact, redact_command
from sluice.transport.nats import Bus
from tests.deploy.processes import Processes
from tests.servers import free_port


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


def test_a_secret_comes_from_its_variable_or_its_file_but_not_from_both(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert read_secret("T", {"T": "plain", "T_FILE": ""}) == "plain"
    assert read_secret("T", {"T_FILE": str(file)}) == "from-file"
    assert read_secret("T", {"T": ""}) is None
    with pytest.raises(ConfigError, match="T and T_FILE are both set"):
        read_secret("T", {"T": "plain", "T_FILE": str(file)})


def test_what_is_shown_holds_no_credentials() -> None:
    assert redact("nats://u:p@a:1,tls://token@b:2 failed") == "nats://***@a:1,tls://***@b:2 failed"
    assert redact("http://127.0.0.1:1/x@y") == "http://127.0.0.1:1/x@y"
    assert redact("nats://u:p@q@a:1") == "nats://***@a:1"
    shown = redact_command(["python", "--api-key", "k", "--admin-api-key=k", "--port", "1"])
    assert shown == ["python", "--api-key", "***", "--admin-api-key=***", "--port", "1"]


@pytest.mark.parametrize(
    "password", ["SECRET/1", "12/SECRET", "SECRET#", "SECRET?", "a@SECRET", "a,SECRET", "a SECRET"]
)
@pytest.mark.parametrize("variable", ["SLUICE_NATS_URL", "SLUICE_REDIS_URL"])
def test_an_address_with_a_password_that_breaks_it_is_refused_without_a_letter_of_it(
    variable: str, password: str
) -> None:
    from services.coordinator.config import ENVIRONMENT, URLS, CoordinatorConfig

    scheme = variable.split("_")[1].lower()
    with pytest.raises(ConfigError) as caught:
        read_settings(CoordinatorConfig, ENVIRONMENT, {variable: f"{scheme}://user:{password}@host:4222"}, urls=URLS)
    assert str(caught.value) == f"{variable}=***: {PERCENT_ENCODE}"


@pytest.mark.parametrize(
    "arguments", [["runs", "--at", "http://u:SECRET/1@h:80"], ["audit", "r", "--nats-url", "nats://u:SECRET/1@h:4222"]]
)
def test_the_command_line_shows_no_password_of_an_address_that_it_cannot_read(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "***: cannot be read as a URL" in said and "SECRET" not in said and said.count("\n") == 1


async def test_a_percent_encoded_password_is_the_one_that_the_server_knows(
    processes: Processes, tmp_path: Path
) -> None:
    port, server_asks_for = free_port(), "a/b@c,d"
    processes.nats(port, "-js", "-sd", str(tmp_path), "--user", "sluice", "--pass", server_asks_for)
    bus = await Bus.connect(f"nats://sluice:a%2Fb%40c%2Cd@127.0.0.1:{port}", "test", deadline_seconds=5)
    assert bus.nc.is_connected
    await bus.close()
