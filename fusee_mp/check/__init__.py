"""A static look at workflow code for what breaks replay. Nothing is imported or run."""
from __future__ import annotations

from fusee_mp.check.finding import RULES as RULES
from fusee_mp.check.finding import Finding as Finding
from fusee_mp.check.source import check_module as check_module
from fusee_mp.check.source import check_source as check_source
