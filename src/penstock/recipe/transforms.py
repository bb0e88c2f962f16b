"""The transforms that are known, by the names of torchvision's classes of both generations; each has one home."""

from penstock.recipe import augmentations, automatic, conversions, geometry
from penstock.recipe.torchvision import Known

TRANSFORMS: dict[str, Known] = {
    **geometry.TRANSFORMS,
    **augmentations.TRANSFORMS,
    **automatic.TRANSFORMS,
    **conversions.TRANSFORMS,
}
