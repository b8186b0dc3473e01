"""Makes what is derived from the models: CustomResourceDefinitions and the reference of the API.

``python -m crds.generator`` writes them, ``--check`` tells which are stale. The core is pure (models in, texts out);
only ``__main__`` touches files.
"""
