"""The papers that the suite runs: what the report calls them and where they can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Paper:
    """A paper's key, its title in the report, its address, and its own words.

    ``period``: its letter for the steps between two exchanges; ``methods``: what it calls a method, where that is not
    what the suite calls it.
    """

    key: str
    title: str
    address: str
    period: str = "K"
    methods: Mapping[str, str] = field(default_factory=dict)


PAPERS = {
    paper.key: paper
    for paper in (
        Paper(
            "averaging",
            "Su and Chen 2015: model averaging over MPI for acoustic networks",
            "https://arxiv.org/abs/1507.01239",
        ),
        Paper(
            "ist",
            "Yuan et al. 2019/2022: independent subnet training",
            "https://arxiv.org/abs/1910.02120",
            period="J",
            methods={
                "ist": "IST",
                "averaging": "local SGD",
                "data_parallel": "data parallel",
                "sequential": "one worker",
            },
        ),
        Paper(
            "spark",
            "Shrivastava, Chaudhury, Jayadeva 2017: data- and model-parallel training on Apache Spark",
            "https://arxiv.org/abs/1708.05840",
        ),
        Paper(
            "layerwise",
            "Jia, Lin, Qi, Aiken 2018: layer-wise parallelism",
            "https://arxiv.org/abs/1802.04924",
            methods={"sequential": "one device"},
        ),
        Paper("suite", "All methods together, and how far each number can be trusted", ""),
    )
}


def paper_of(key: str) -> Paper:
    """The paper with this key; one that is not known yet keeps its key as its title."""
    return PAPERS.get(key, Paper(key, key, ""))
