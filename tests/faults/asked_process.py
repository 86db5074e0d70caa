"""A process that answers numbers of cases with lines; it is started again after a crash or a hang."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from faults.outcome import Outcome

_SECONDS = 300.0


class AskedProcess:
    """A program that reads a number from each line of its input and answers with a line.

    Args:
        arguments: Arguments of the interpreter.
        environment: Variables to set.
    """

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = [sys.executable, *arguments], {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        # A file, because a pipe that nobody reads fills up.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process

    def ask(self, number: int) -> str | Outcome:
        """The answer to a number, or the outcome if there is none."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{number}\n".encode())
            process.stdin.flush()
            is_ready = select.select([process.stdout], [], [], _SECONDS)[0]
            answer = process.stdout.readline().decode() if is_ready else None
        except BrokenPipeError:
            answer = ""
        if answer:
            return answer.rstrip("\n")
        self._process = None
        if answer is None:
            process.kill()
            process.wait()
            return Outcome("hang", f"case {number}: no answer within {_SECONDS:.0f} s")
        code = process.wait()
        self._errors.seek(0)
        said = self._errors.read()[-3000:].decode(errors="replace")
        return Outcome(
            "crash" if code < 0 or "Sanitizer" in said else "traceback", f"case {number}: code {code}: {said}"
        )

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors.seek(0)
            self._errors.truncate()
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        return self._process
