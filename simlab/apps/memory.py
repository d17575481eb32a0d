"""Sliders over memory: ZeRO's curves over the ranks, and what a rank holds from moment to moment of
a step."""

import html
from base64 import b64encode
from io import BytesIO
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

import simlab as sl
from simlab.memory import SHARDING
from simlab.memory.model_states import EVERY, RECIPES
from simlab.views import memory_picture
from simlab.views.interactive.memory import figure, update

RANKS = [2**n for n in range(11)]
MODELS = [name for name, model in sl.catalogue().items() if model.positions and not model.gated_mlp]


class MemoryExplorer(widgets.VBox):
    """Above: model states on a rank over dp, for each ZeRO stage, with the GPU's capacity. Below:
    one step of the chosen stage, category on category, its peak with the op that makes it, and
    where it first passes the capacity.

    The arguments are the controls' starting values. The step is the walk of
    `simlab.data_parallel_memory`, so the models are GPTs.
    """

    def __init__(
        self,
        model: str = "megatron-7.5b",
        *,
        recipe: str = "zero",
        sharding: str = "fsdp",
        dp: int = 8,
        microbatch_size: int = 4,
        cluster: str = "dgx-h100",
    ) -> None:
        style = {"style": {"description_width": "9em"}, "layout": widgets.Layout(width="27em")}
        recipes = [name for name, one in RECIPES.items() if one.stages == EVERY]
        self.model = widgets.Dropdown(options=MODELS, value=model, description="model", **style)
        self.recipe = widgets.Dropdown(options=recipes, value=recipe, description="recipe", **style)
        self.sharding = widgets.Dropdown(
            options=list(SHARDING), value=sharding, description="sharding", **style
        )
        self.cluster = widgets.Dropdown(
            options=list(sl.clusters()), value=cluster, description="GPU of", **style
        )
        self.dp = widgets.SelectionSlider(options=RANKS, value=dp, description="dp", **style)
        self.microbatch_size = widgets.IntSlider(
            microbatch_size, 1, 32, description="sequences", **style
        )
        self.text = widgets.HTML()
        shown = self.picture_data()
        self.picture = figure(*shown, make=go.FigureWidget)
        self.text.value = _text(shown)
        controls = (
            self.model,
            self.recipe,
            self.sharding,
            self.cluster,
            self.dp,
            self.microbatch_size,
        )
        for control in controls:
            control.observe(self._redraw, names="value")
        boxes = widgets.HBox([widgets.VBox(controls[:3]), widgets.VBox(controls[3:])])
        super().__init__([boxes, self.text, self.picture])

    def picture_data(self) -> tuple[Any, ...]:
        """(ranks, curves, the chosen point, the step's `Stack`) at the controls' values."""
        model, recipe, dp = sl.load_model(self.model.value), self.recipe.value, self.dp.value
        curves = sl.zero_curves(model.parameters, RANKS, recipe=recipe)
        here = dp, curves[SHARDING[self.sharding.value]][RANKS.index(dp)]
        options = {
            "microbatch_size": self.microbatch_size.value,
            "sharding": self.sharding.value,
            "recipe": recipe,
        }
        memory = sl.data_parallel_memory(model, dp, **options)
        capacity_bytes = sl.clusters()[self.cluster.value].gpu.memory_bytes
        name = f"{model.name}, {self.sharding.value}, dp = {dp}, recipe {recipe}"
        return (
            RANKS,
            curves,
            here,
            sl.memory_stack(memory, capacity_bytes=capacity_bytes, name=name),
        )

    def _redraw(self, _: Any) -> None:
        shown = self.picture_data()
        update(self.picture, *shown)
        self.text.value = _text(shown)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and a still picture of its step for where no widget can live (a page on
        GitHub)."""
        bundle = super()._repr_mimebundle_(**kwargs)
        png = BytesIO()
        memory_picture(self.picture_data()[-1]).savefig(png, format="png", dpi=80)
        bundle["image/png"] = b64encode(png.getvalue()).decode()
        return bundle


def _text(shown: Any) -> str:
    stack = shown[-1]
    verdict = "fits" if stack.breach is None else "does not fit"
    return f"<b>{html.escape(stack.name)}: {verdict}</b>; {html.escape(str(stack))}"
