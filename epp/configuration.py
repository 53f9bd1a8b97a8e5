"""The configuration in force: read at the start, and applied again while requests are under way, all of it or nothing of it."""

import asyncio
import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from adsum.config.problems import ConfigError
from adsum.tasks import ResourceOwner
from epp.config.live_config import Apply, LiveConfig
from epp.config.metric_flags import with_metrics
from epp.config.picker_config import CONFIG_OF_POOL, ParsedConfig, PickerConfig, build_config, parse_config
from epp.config.plugins import Plugins
from epp.config.settings import Settings
from epp.config.validate import read_text
from epp.telemetry.counters import Telemetry
from epp.telemetry.picker_metrics import ConfigGauges

log = logging.getLogger(__name__)


class ConfiguredPart(Protocol):
    """A part of a running picker that the configuration decides about."""

    def prepare(self, config: PickerConfig) -> Apply:
        """Build what `config` asks for, without effect; the returned function uses it, and raises nothing. Raises ConfigError."""


class Configuration(ResourceOwner):
    """An async context manager; once entered, a configuration file is followed. `config`: in force.

    Its plugins stay, with what they have learnt, where the new file has them unchanged. Raises ConfigError, another ValueError,
    or OSError for a file that the configuration names.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._rng = random.Random()
        self._file: LiveConfig | None = None
        self.parts: Sequence[ConfiguredPart] = ()
        """The parts that a change is applied to, in this order."""
        path, text = settings.config_file, settings.config_text
        if path is not None:
            text = read_text(path)
            self._file = LiveConfig(path, text)
            telemetry.registry.register(ConfigGauges(self._file))
        elif text is None and settings.pool_name:
            text = CONFIG_OF_POOL
        try:
            self.config = self._build(parse_config(text))
        except ConfigError as error:
            raise error.in_file("--config-text" if path is None else path) from error
        self._log_warnings()

    def describe(self) -> dict[str, Any]:
        """For /status; null: there is no file."""
        return {"config": None if self._file is None else self._file.describe()}

    def reread(self) -> None:
        """Have the file read now, if there is one."""
        if self._file is None:
            log.info("no configuration file is read again: --config-file names none")
        else:
            self._file.trigger()

    async def _open(self) -> None:
        if self._file is not None:
            self._start(self._file.run(self._prepare))

    async def _prepare(self, text: str) -> Apply:
        """Build what `text` describes; the returned function applies it and raises nothing.

        A thread parses it: PyYAML takes a second for a large file. The parts are built here, since some are in use.
        """
        config = self._build(await asyncio.to_thread(parse_config, text), self.config.plugins)
        self._check_unchanged(config)
        return partial(self._apply, config, [part.prepare(config) for part in self.parts])

    def _build(self, parsed: ParsedConfig, before: Plugins | None = None) -> PickerConfig:
        staleness = self._settings.metrics_staleness_threshold
        processes = self._settings.processes
        config = build_config(parsed, rng=self._rng, staleness=staleness, before=before, processes=processes)
        return with_metrics(config, self._settings.metric_names)

    def _check_unchanged(self, config: PickerConfig) -> None:
        before = self.config
        cannot = "cannot change while the picker runs; restart it, or leave this as it was"
        if config.file_discovery != before.file_discovery:
            raise ConfigError("dataLayer.discovery", f"the source of workers {cannot}")
        if config.attributes != before.attributes:
            raise ConfigError(
                "plugins: core-metrics-extractor", f"the attributeKeys of customMetrics {cannot}"
            )

    def _apply(self, config: PickerConfig, changes: Sequence[Apply]) -> None:
        for apply in changes:
            apply()
        self.config = config
        self._log_warnings()

    def _log_warnings(self) -> None:
        for warning in self.config.warnings:
            log.warning("%s", warning)
