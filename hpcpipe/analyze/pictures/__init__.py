"""Pictures of a run beside the Gantt: classes by stage, steps over time, messages, ready-sets and durations."""

from hpcpipe.analyze.pictures.charts import CHARTS, Chart, Subject
from hpcpipe.analyze.pictures.draw import PICTURES, draw_picture, split_name, to_svg
from hpcpipe.analyze.pictures.measures import Measures, measure

__all__ = ["CHARTS", "PICTURES", "Chart", "Measures", "Subject", "draw_picture", "measure", "split_name", "to_svg"]
