"""The declarations of the pickers; apart from them, because they are compiled."""

from typing import Final

from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import PickerParameters
from epp.scheduling.pickers.score_pickers import MaxScorePicker, RandomPicker, WeightedRandomPicker


def _picker(
    type: str, picker: type[MaxScorePicker | RandomPicker | WeightedRandomPicker]
) -> PluginDeclaration:
    return PluginDeclaration(
        type=type,
        role=Role.PICKER,
        parameters=PickerParameters,
        build=lambda given, context: picker(context.rng),
    )


MAX_SCORE_PICKER: Final = _picker("max-score-picker", MaxScorePicker)
RANDOM_PICKER: Final = _picker("random-picker", RandomPicker)
WEIGHTED_RANDOM_PICKER: Final = _picker("weighted-random-picker", WeightedRandomPicker)
