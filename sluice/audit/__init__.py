"""A run counted again from what it has stored, without any code of the services that stored it."""

from sluice.audit.command import main
from sluice.audit.findings import Fault, Finding
from sluice.audit.recount import audit
from sluice.audit.report import AuditReport

__all__ = ["AuditReport", "Fault", "Finding", "audit", "main"]
