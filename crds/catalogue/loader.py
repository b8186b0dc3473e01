"""The catalogue that comes with the package."""

from functools import cache
from importlib.resources import files

from crds.catalogue.catalogue import Catalogue


@cache
def load_catalogue() -> Catalogue:
    """The packaged catalogue, read once.

    Raises CatalogueError when a file is wrong.
    """
    folder = files("crds.catalogue")
    return Catalogue(
        {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".yaml")}
    )
