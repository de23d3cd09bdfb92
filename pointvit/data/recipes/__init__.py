"""Recipes of the synthetic shapes: `rng -> triangle soups`, one for each of twenty ModelNet40 categories.

Everything that may differ between two shapes of a category comes from the generator. z is up; only
proportions count, since every shape is scaled to one size afterwards.
"""

from collections.abc import Callable

from pointvit.data.primitives import Rng, Triangles
from pointvit.data.recipes import furniture, household, vehicles, vessels

RECIPES: dict[str, Callable[[Rng], list[Triangles]]] = {
    recipe.__name__: recipe
    for recipe in (
        vehicles.airplane, furniture.bed, furniture.bench, furniture.bookshelf, vessels.bottle,
        vessels.bowl, vehicles.car, furniture.chair, vessels.cup, furniture.desk,
        household.guitar, household.lamp, household.laptop, household.monitor, furniture.night_stand,
        furniture.sofa, household.stairs, furniture.stool, furniture.table, vessels.vase,
    )
}  # fmt: skip
"""Name of the category -> its recipe; the order is that of the labels."""
