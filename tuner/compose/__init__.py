"""What the commands do: options in, adapters joined, results out. Heavy imports happen inside the functions."""

from tuner.compose.answers import export_load
from tuner.compose.look import export_study, open_ui, report_study
from tuner.compose.options import Options
from tuner.compose.planning import check_file, dry_run, list_spaces, show_space
from tuner.compose.running import run_study
from tuner.compose.studies import list_studies

__all__ = [
    "Options",
    "check_file",
    "dry_run",
    "export_load",
    "export_study",
    "list_spaces",
    "list_studies",
    "open_ui",
    "report_study",
    "run_study",
    "show_space",
]
