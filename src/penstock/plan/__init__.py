"""Plan a run: which rows, in what order, for whom; pure functions of counts, a seed and a place.

Data flows down: `order` fixes permutations, `line` lays chunks end to end, `lanes` (with `blocks`) and `lines` deal
items to ranks, `epoch` chooses between them, `state` stores a place, `length` counts steps, `plan` tells a person.
NumPy only: no files, clocks or threads.
"""

from penstock.plan.advice import Sizes
from penstock.plan.base import EpochPlan
from penstock.plan.cursor import Cursor
from penstock.plan.epoch import plan_epoch
from penstock.plan.length import epochs_left, steps_left
from penstock.plan.order import Kind, Lanes, Order, choose_lanes, permutation
from penstock.plan.plan import Plan, make_plan
from penstock.plan.share import Remainder, Share
from penstock.plan.state import State, check, check_owner, check_predicate
from penstock.plan.visits import Visits

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
