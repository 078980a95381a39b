"""From a torch model to a functional graph: capture, promotion, names, source lines."""

from samba.tracer.capture import trace_model as trace_model
from samba.tracer.traced import Source as Source
from samba.tracer.traced import Traced as Traced
