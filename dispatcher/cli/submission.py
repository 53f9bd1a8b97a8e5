"""The command submit: sends a batch file to a queue and, with --results, writes its answers."""

import sys
from contextlib import AsyncExitStack

from adsum.command_line import ANSWERS_ARE_ERRORS, SUCCEEDED
from adsum.config.problems import ConfigError
from dispatcher.cli import batch, progress
from dispatcher.cli import batch_file as batchfile
from dispatcher.cli.flags import SubmitFlags
from dispatcher.cli.queue_locator import open_queue


async def submit(flags: SubmitFlags) -> int:
    """Returns 0, or 3 if some answers are errors. Raises BatchFileError, ConfigError, QueueError and OSError."""
    # the whole file is checked before its first line is sent
    all_lines = batchfile.read_lines(flags.file)
    if not all_lines:
        raise batchfile.BatchFileError(f"{flags.file}: there is no request in it; {batchfile.EXPECTED}")
    done = batchfile.read_answered(flags.results) if flags.results is not None else {}
    async with open_queue(flags.locator) as (broker, queue, rules), AsyncExitStack() as stack:
        if flags.results is not None and rules.result_list:
            raise ConfigError(
                "--results", f"the results of queue {queue.name!r} go to the Redis list {rules.result_list!r}"
            )
        out = (
            stack.enter_context(batchfile.open_results(flags.results)) if flags.results is not None else None
        )
        now = await broker.now_ms()
        deadline_ms = now + int(flags.deadline * 1000)
        settings = batch.BatchSettings(flags.batch, flags.tenant, deadline_ms, now, flags.objective)
        lines = all_lines
        if flags.results is not None:
            lines = batch.unanswered(all_lines, done, flags.results, settings)
        with progress.show_progress() as bar:
            submitted = await batch.submit_all(queue, lines, settings, bar)
            new = sum(one.new for one in submitted)
            answered = len(all_lines) - len(lines)
            bar.hint(
                f"batch {flags.batch!r}, queue {queue.name!r}: {new} requests submitted, "
                f"{len(submitted) - new} had been submitted before"
                + (f", {answered} are answered in {flags.results}" if answered else "")
            )
            if out is None:
                return 0
            failures = await batch.collect(queue, submitted, out, bar)
    before = f", {answered} of them from before; of the others" if answered else ":"
    _print_summary(f"{len(all_lines)} answers in {flags.results}{before} {failures}")
    return ANSWERS_ARE_ERRORS if failures.total else SUCCEEDED


def _print_summary(text: str) -> None:
    print(text, file=sys.stderr)
