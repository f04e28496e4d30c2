"""Names that options give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.compose.options import Options


@pytest.mark.parametrize(
    ("hardware", "profile", "name"),
    [
        ("h200", "h200", "h200_m_short"),
        ("auto", "h200", "h200_m_short"),
        ("./sim.yaml", "my-sim", "my-sim_m_short"),
        ("/x/sim.yml", "", "sim_m_short"),
        ("../.sim.yaml", "", "sim_m_short"),
        ("sim.yaml", "..", "m_short"),
    ],
)
def test_a_study_is_named_after_the_profile_and_never_hidden(hardware: str, profile: str, name: str) -> None:
    options = Options(hardware=hardware)
    assert options.study_name("org/m", "short", profile) == name
    replace(options, study=name).validate()
    assert replace(options, trial_command="x").study_name("org/m", "short", profile) == f"{name}_external"
