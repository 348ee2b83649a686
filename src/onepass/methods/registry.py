"""The methods: one dict, one line each. Importing it does not import torch; `method_class` does."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onepass.config import unknown
from onepass.errors import UsageError
from onepass.names import import_path

if TYPE_CHECKING:
    from onepass.learner.contract import BaseLearner


BOUNDARIES = "where nobody tells them, classes never seen begin a task"


@dataclass(frozen=True)
class Method:
    """Where a method's class is, its title, where it was published, what it does and costs."""

    path: str
    title: str
    venue: str
    about: str
    cost: (
        float  # training FLOPs of a step over ER's; of methods that train no network, over those on resnet18, CIFAR-10
    )
    keeps: str = "-"  # beyond the network and the memory
    boundaries: str = ""  # what it does at a task's beginning or end, if anything
    scenario: str = "class-incremental"  # what it runs on unless told otherwise
    net: str = ""  # in the place of any network of ours, if it trains none

    @property
    def reference(self) -> bool:
        """Whether it has the whole stream shuffled, and so is no rival of those that have it task by task."""
        return self.scenario in ("iid", "iid++")


def _at(file: str, name: str) -> str:
    return f"onepass.methods.{file}:{name}"


METHODS: dict[str, Method] = {
    "finetune": Method(_at("finetune", "FineTune"), "FINE-TUNE", "-", "learn each batch, keep nothing", 0.5),
    "iid": Method(_at("iid", "IID"), "IID", "-", "fine-tune on all classes shuffled", 0.5, scenario="iid"),
    "iid++": Method(
        _at("iidpp", "IIDPP"),
        "IID++",
        "ICLR 2022",
        "the same with a second, independent batch a step",
        1.0,
        "all of the data",
        scenario="iid++",
    ),
    "er": Method(_at("er", "ER"), "ER", "NeurIPS 2019", "replay a random part of the memory beside each batch", 1.0),
    "gss": Method(
        _at("gss", "GSS"),
        "GSS",
        "NeurIPS 2019",
        "keep samples whose gradients point away from the memory's",
        2.0,
        "a score per slot; ten gradients at a time",
    ),
    "mir": Method(
        _at("mir", "MIR"),
        "MIR",
        "NeurIPS 2019",
        "replay the candidates whose loss a step on the new batch would raise most",
        1.85,
        "a second copy of the weights at a time",
    ),
    "er-wa": Method(
        _at("er_wa", "ERWA"),
        "ER-WA",
        "CVPR 2020",
        "after each task, scale the new classes' weights to the old ones' length",
        1.0,
        boundaries="scales weights at a task's end",
    ),
    "derpp": Method(
        _at("derpp", "DERPP"),
        "DER++",
        "NeurIPS 2020",
        "replay asks for the logits of when a sample was new, and for its label",
        1.5,
        "logits per slot",
    ),
    "gmed": Method(
        _at("gmed", "GMED"),
        "GMED",
        "NeurIPS 2021",
        "edit replayed images so that the coming step would hurt them more",
        1.34,
        "float images and an edit count per slot; a second copy of the weights at a time",
    ),
    "aser": Method(
        _at("aser", "ASER"),
        "ASER",
        "AAAI 2021",
        "replay and keep by Shapley values of nearest neighbours",
        4.2,
    ),
    "ss-il": Method(
        _at("ss_il", "SSIL"),
        "SS-IL",
        "ICCV 2021",
        "separate softmax for old and new classes, and the last task's network as teacher",
        1.33,
        "a copy of the network",
        boundaries="groups classes by task, renews its teacher at a task's end",
    ),
    "scr": Method(
        _at("scr", "SCR"),
        "SCR",
        "CVPR-W 2021",
        "supervised contrast of augmentations; predict by the nearest class mean",
        1.0,
        "a projection head",
    ),
    "er-dvc": Method(
        _at("er_dvc", "ERDVC"),
        "ER-DVC",
        "CVPR 2022",
        "an image and its augmentation must agree; replay what interferes most in the last layer",
        1.85,
        "a small network over logits; a second copy of the weights at a time",
    ),
    "er-ace": Method(
        _at("er_ace", "ERACE"),
        "ER-ACE",
        "ICLR 2022",
        "new samples compete only among the classes of their batch",
        1.0,
    ),
    "ocm": Method(
        _at("ocm", "OCM"),
        "OCM",
        "ICML 2022",
        "contrast of sixteen transforms, and distillation from the last task's network",
        17.7,
        "a projection head, a copy of both networks, Adam's two numbers for each weight",
        boundaries="renews its copy at a task's end, replays from the second task on",
    ),
    "obc": Method(
        _at("obc", "OBC"),
        "OBC",
        "ICLR 2023",
        "a second output layer, trained on the memory alone, predicts",
        1.17,
        "a second output layer; a second copy of the weights at a time",
    ),
    "pcr": Method(
        _at("pcr", "PCR"),
        "PCR",
        "CVPR 2023",
        "contrast samples with the proxies of the classes in their batch",
        1.0,
    ),
    "er-lode": Method(
        _at("er_lode", "ERLODE"),
        "ER-LODE",
        "NeurIPS 2023",
        "split the loss of new samples into new against old and within the new, and weigh the first less",
        1.0,
        "a count of tasks",
        boundaries="new and old classes are those of this task and of earlier ones",
    ),
    "er-cba": Method(
        _at("er_cba", "ERCBA"),
        "ER-CBA",
        "ICCV 2023",
        "a small network absorbs the shift of the stream while training, and is left out of predictions",
        1.04,
        "a small network over logits and its optimizer's state",
        boundaries="its outer step starts with the second task",
    ),
    "ncm": Method(
        _at("ncm", "NCM"),
        "NCM",
        "-",
        "the nearest class mean of features that never change",
        0.0,
        "a mean, a sum of features and a count for each class",
        net="linear",
    ),
    "slda": Method(
        _at("slda", "SLDA"),
        "SLDA",
        "CVPR-W 2020",
        "a linear discriminant: class means and one covariance, exact in any order",
        0.001,
        "a second moment of features; a mean, a sum of features and a count for each class",
        net="linear",
    ),
    "randumb": Method(
        _at("randumb", "RanDumb"),
        "RanDumb",
        "NeurIPS 2024",
        "a linear discriminant on random waves of the pixels",
        0.003,
        "a second moment of features; a mean, a sum of features and a count for each class",
        net="linear",
    ),
    "patch-lda": Method(
        _at("patch_lda", "PatchLDA"),
        "Patch-LDA",
        "onepass",
        "a linear discriminant on responses to whitened patches of the first images",
        0.006,
        "a second moment of features; a mean, a sum of features and a count for each class; at first 1,000 images",
        net="linear",
    ),
    "a-gem": Method(
        _at("a_gem", "AGEM"),
        "A-GEM",
        "ICLR 2019",
        "learn new samples only, but take out of their gradient what would raise the loss of stored old ones",
        1.0,
        "a second gradient at a time",
        boundaries="a task's beginning makes the stored samples of earlier classes guard its steps",
    ),
    "ewc++": Method(
        _at("ewc_pp", "EWCPP"),
        "EWC++",
        "ECCV 2018",
        "pull the weights that mattered to earlier tasks back to where the last task left them",
        0.5,
        "three numbers for each weight: its value at the task's beginning, its importance, a running Fisher",
        boundaries="a task's beginning fixes what weights are pulled to, and how much",
    ),
    "lwf": Method(
        _at("lwf", "LwF"),
        "LwF",
        "ECCV 2016",
        "on new samples, keep the answers about old classes that the network gave when the task began",
        0.67,
        "a copy of the network and a count of tasks",
        boundaries="a task's beginning renews the copy, and lets it count for more",
    ),
    "icarl": Method(
        _at("icarl", "ICaRL"),
        "iCaRL",
        "CVPR 2017",
        "a sigmoid for each class, the last task's network as target for old ones; predict by the nearest class mean",
        1.33,
        "a copy of the network",
        boundaries="a task's beginning renews its teacher and says which classes are old",
    ),
    "gdumb": Method(
        _at("gdumb", "GDumb"),
        "GDumb",
        "ECCV 2020",
        "keep equally many samples of each class; at a task's end, train a new network on them alone",
        1.6,
        "a copy of the initial network",
        boundaries="trains at a task's end",
    ),
    "rar": Method(
        _at("rar", "RAR"),
        "RAR",
        "NeurIPS 2022",
        "ten steps for each batch, each with another part of the memory and new augmentations",
        5.0,
    ),
    "onpro": Method(
        _at("onpro", "OnPro"),
        "OnPro",
        "ICCV 2023",
        "OCM's contrast and one of class prototypes; replay mixes classes whose prototypes are close",
        16.8,
        "a projection head, a prototype a class, Adam's two numbers for each weight",
        boundaries="mixes and learns the labels of replayed samples from the second task on",
    ),
    "mose": Method(
        _at("mose", "MOSE"),
        "MOSE",
        "CVPR 2024",
        "an expert at every stage of the network, and the last one learns from the others; predict by class means",
        2.1,
        "an expert for each stage but the last, projections, Adam's two numbers for each weight",
        boundaries="new classes are those of this task, and are learned apart from the second task on",
    ),
    "ccl-dc": Method(
        _at("ccl_dc", "CCLDC"),
        "CCL-DC",
        "CVPR 2024",
        "two networks of ER teach each other along a chain of ever stronger augmentations",
        6.0,
        "a second network, AdamW's two numbers for each weight of both",
    ),
    "er-fsl": Method(
        _at("er_fsl", "ERFSL"),
        "ER-FSL",
        "ACM MM 2024",
        "learn in a task's own feature subspace, replay in all",
        1.0,
        "four masks over the features and a count of tasks",
        boundaries="a task's beginning gives it its next subspace",
    ),
    "er-fsl+": Method(
        _at("er_fsl_plus", "ERFSLPlus"),
        "ER-FSL+",
        "onepass",
        "ER-FSL that replays more for the same work, from a class-balanced memory, and predicts by an average",
        1.0,
        "ER-FSL's masks and count; two numbers a class; an averaged copy of the network",
        boundaries="a task's beginning gives it its next subspace",
    ),
}
REFERENCES = [name for name, method in METHODS.items() if method.reference]
_SPELLINGS = {"der++": "derpp", "iidpp": "iid++", "ewcpp": "ewc++", "erfslplus": "er-fsl+", "erfslp": "er-fsl+"}


@functools.cache
def canonical(name: str) -> str:
    """The one spelling of a method (er_ace, ERACE and er-ace are one); MODULE:CLASS as it is."""
    if ":" in name:
        return name
    if name.endswith(".py"):
        raise UsageError(f"{name!r} is a file: name the class in it, as {name.removesuffix('.py')}:CLASS")
    squeezed = re.sub(r"[-_ ]", "", name.lower())
    if squeezed == "der":
        raise UsageError("'der' means two methods: the table's row is derpp (DER++); plain DER is derpp with --beta 0")
    for known in METHODS:
        if squeezed in (known.replace("-", ""), *(short for short, full in _SPELLINGS.items() if full == known)):
            return known
    raise unknown("method", name, METHODS, "one of your own is MODULE:CLASS; ours")


def is_reference(name: str) -> bool:
    """Whether a method, which may be one of your own, is a reference."""
    return name in REFERENCES


def trains(name: str) -> bool:
    """Whether a method, which may be one of your own, trains a network; others take features as they are."""
    return name not in METHODS or not METHODS[name].net


def method_class(name: str) -> type[BaseLearner]:
    """The class of a named method, or of your own as MODULE:CLASS."""
    name = canonical(name)
    return import_learner(METHODS[name].path if name in METHODS else name)


def import_learner(path: str) -> type[BaseLearner]:
    """The learner class at MODULE:CLASS."""
    from onepass.learner.contract import BaseLearner

    found = import_path(path, "MODULE:CLASS")
    if not (isinstance(found, type) and issubclass(found, BaseLearner)):
        raise UsageError(f"{path!r}: expected a subclass of onepass.Learner, got {found!r}")
    return found
