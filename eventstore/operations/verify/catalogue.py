"""The rule catalogue for those who show it, and the findings that name its codes."""

from eventstore.errors import UsageError
from eventstore.format.records import Finding
from projections.verify.rules import RULES, Rule

__all__ = ("Finding", "Rule", "all_rules", "parse_codes", "rule_of")


def all_rules() -> list[Rule]:
    """Return every rule, in the order of the catalogue."""
    return list(RULES.values())


def rule_of(code: str) -> Rule:
    """Return the rule with this code. Raises KeyError where there is none."""
    return RULES[code]


def parse_codes(text: str | None) -> frozenset[str]:
    """Return the codes in a list with commas. Raises UsageError for a code that no rule has."""
    codes = frozenset(code.strip() for code in (text or "").split(",") if code.strip())
    unknown = sorted(codes - RULES.keys())
    if unknown:
        raise UsageError(f"there is no rule {', '.join(map(repr, unknown))}: see `compass-es verify --rules`")
    return codes
