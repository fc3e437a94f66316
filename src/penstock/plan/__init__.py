"""Plan a run: which rows, in what order, for whom; pure functions of counts, a seed and a place.

`order` holds the values that fix a run; `parts` and `windows` have items other than rows; `epoch` has the interface of
epoch plans and the sequential one, `shuffled` the other, by `permutation`; `state` stores a place; `plan` describes
a run to a person; `draws` decides the turns of a mix. NumPy only: no files, clocks or threads.
"""

from penstock.plan.epoch import EpochPlan, Visits, plan_epoch
from penstock.plan.order import Cursor, Kind, Order, Remainder, Share, epochs_left, steps_left
from penstock.plan.permutation import permutation
from penstock.plan.plan import Plan, Sizes, make_plan
from penstock.plan.shuffled import Lanes, choose_lanes
from penstock.plan.state import State, check, check_owner, check_predicate

__all__ = [
    "Cursor",
    "EpochPlan",
    "Kind",
    "Lanes",
    "Order",
    "Plan",
    "Remainder",
    "Share",
    "Sizes",
    "State",
    "Visits",
    "check",
    "check_owner",
    "check_predicate",
    "choose_lanes",
    "epochs_left",
    "make_plan",
    "permutation",
    "plan_epoch",
    "steps_left",
]
