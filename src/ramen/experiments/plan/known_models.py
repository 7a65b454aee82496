"""The models that can be loaded by name."""

from dataclasses import dataclass

from ramen.experiments.plan.presets import list_presets, load_preset


@dataclass(frozen=True)
class KnownModel:
    """A model that can be loaded by its name."""

    name: str
    presets: tuple[str, ...]  # the presets for it


def list_models(containing: str = "") -> list[KnownModel]:
    """The package's own model and all of open_clip's pretrained ones, those with presets first."""
    import open_clip

    used: dict[str, list[str]] = {}
    for preset in map(load_preset, list_presets()):
        used.setdefault(str(preset.model), []).append(str(preset.name))
    names = [f"{architecture}/{tag}" for architecture, tag in open_clip.list_pretrained()]
    everything = dict.fromkeys(["tiny", *sorted(used), *names])
    return [
        KnownModel(name, tuple(used.get(name, ())))
        for name in everything
        if containing.lower() in name.lower()
    ]
