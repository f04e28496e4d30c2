"""What a study found and where its time went: tables for people, JSON for scripts, and a table to replay."""

from tuner.report.answers import Answers
from tuner.report.document import bases, study_document, trial_document
from tuner.report.one import print_trial
from tuner.report.page import study_page
from tuner.report.show import print_conclusion, print_study
from tuner.report.table import table_row, write_table

__all__ = [
    "Answers",
    "bases",
    "print_conclusion",
    "print_study",
    "print_trial",
    "study_document",
    "study_page",
    "table_row",
    "trial_document",
    "write_table",
]
