"""`python -m tests.house`: checks every tracked file against the house rules; exit 1 and one line per finding.

Lengths are reported, not refused, up to the hard limits: the habit is files under 300 lines and functions under 50.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house.rules import Finding, Length, check_file, long_functions

ROOT = Path(__file__).resolve().parents[2]
FILE_REPORT, FILE_LIMIT = 400, 700
FUNCTION_REPORT, FUNCTION_LIMIT = 70, 120
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".ini", ".mako", ".lua", ""}


def repository_files(root: Path) -> list[str]:
    """Tracked files and new ones that git does not ignore, relative, sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    return sorted({name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()})


def main() -> int:
    findings: list[Finding] = []
    lengths: list[Length] = []
    for name in repository_files(ROOT):
        if Path(name).suffix not in TEXT:
            continue
        source = (ROOT / name).read_text(encoding="utf-8")
        findings.extend(check_file(name, source))
        if name.endswith(".py") and not name.startswith("tests/"):
            lengths.extend(long_functions(name, source, FUNCTION_REPORT))
            lines = source.count("\n")
            if lines > FILE_REPORT:
                lengths.append(Length(lines, name))
            if lines > FILE_LIMIT:
                findings.append(Finding(name, 1, f"{lines} lines; one file does one thing (limit {FILE_LIMIT})"))
    for length in sorted(lengths, key=lambda each: each.lines, reverse=True):
        print(f"long: {length.lines:5d} lines  {length.where}")
        if length.lines > FUNCTION_LIMIT and " " in length.where:
            findings.append(Finding(length.where, 1, f"a function of {length.lines} lines (limit {FUNCTION_LIMIT})"))
    for finding in findings:
        print(finding)
    print(f"house rules: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
