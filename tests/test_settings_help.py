"""Help lists what can be set, from the configuration files."""

from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from simeval.cli import main
from simeval.cli.compose import compose_config, options_of, plain


def leaves(config: Any, prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def shown(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "groups"),
    [
        ("run", ("world", "policy", "protocol", "perturbation", "experiment")),
        ("train", ("training/policy", "worldmodel")),
    ],
)
def test_help_lists_every_choice_and_the_settings_of_the_default(
    command: str, groups: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(command, monkeypatch, capsys)
    for group in groups:
        part = text[text.index(f"  {group.rpartition('/')[2]}=") :]
        listed = part[: part.index("=", part.index("=") + 1) if "=" in part[part.index("=") + 1 :] else None]
        words = listed.replace(",", " ").split()
        assert set(options_of(group)) <= set(words), group
    settings = set(leaves(plain(compose_config(command, ["data=runs/x"] if command == "train" else []))))
    sections = {line.partition("=")[0].strip() for line in text.splitlines() if "=" in line.partition(" #")[0]}
    own = {
        name for name in settings if name.partition(".")[0] in ("run", "record", "report", "protocol", "judge", "log")
    }
    hidden = {"protocol.name", "protocol._target_"}
    assert own - hidden <= sections, own - hidden - sections


def test_help_says_what_the_comment_above_a_setting_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown("run", monkeypatch, capsys)
    line = next(line for line in text.splitlines() if "run.retry_errors=" in line)
    said = line.partition("false")[2].strip()
    assert f"# {said}" in resources.files("configs").joinpath("run.yaml").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100
