"""Which known model an unknown one is most like, by name. Never guesses across families: then it says None."""

import difflib
import functools
import re
from collections.abc import Collection, Mapping

# How the names of each family begin, digits left out. The families are those of the measured job types
# (convolutional image models, recurrent and attention sequence models, recommenders, generative models, agents).
_FAMILIES: Mapping[str, str] = {
    "convolutional": "resnet resnext res vgg alexnet inception googlenet mobilenet shufflenet densenet efficientnet "
    "squeezenet yolo imagenet cifar pointnet unet",
    "recurrent": "lm wlm lstm gnmt seqseq seqtoseq deepspeech ctc gru rnn regularizedlstm",
    "attention": "transformer bert gpt roberta llama vit xlnet",
    "embedding": "recommendation recoder ncf neumf dlrm autoencoder",
    "generative": "cyclegan gan dcgan vae",
    "agent": "ac dqn ppo",
}
_FAMILY_OF = {stem: family for family, stems in _FAMILIES.items() for stem in stems.split()}
_SHORT = 2  # stems this short must be the whole name: "ac" begins too many words
_BATCH = re.compile(r"\(?\b(?:batch size|batch|bs)[ =:]*\d+\)?|[@]\d+$", re.IGNORECASE)


@functools.lru_cache(4096)  # names come from users, in any number, and each comes again and again
def canonical(model: str) -> str:
    """Lower case, letters and digits only, without a batch size: "ResNet-18 (batch size 64)" → "resnet18"."""
    return re.sub(r"[^a-z0-9]", "", _BATCH.sub("", model).lower())


def nearest(model: str, known: Collection[str]) -> str | None:
    """The canonical name among `known` that `model` is or is most like; None if no known model is of its family.

    The same name first; then the same stem with the nearest number (resnet101 → resnet50, on a ratio scale); then the
    same family, by likeness of spelling.
    """
    name = canonical(model)
    if name in known:
        return name
    stem = _stem(name)
    same_stem = [k for k in known if _stem(k) == stem]
    if stem and same_stem:
        return min(sorted(same_stem), key=lambda k: _ratio(_number(k), _number(name)))
    family = _family(stem)
    relatives = sorted(k for k in known if family is not None and _family(_stem(k)) == family)
    if not relatives:
        return None
    return max(relatives, key=lambda k: difflib.SequenceMatcher(None, k, name).ratio())


def _family(stem: str) -> str | None:
    """Of the longest known beginning of the stem."""
    begins = [known for known in _FAMILY_OF if stem == known or (len(known) > _SHORT and stem.startswith(known))]
    return _FAMILY_OF[max(begins, key=len)] if begins else None


def _stem(name: str) -> str:
    return re.sub(r"\d", "", name)


def _number(name: str) -> float:
    digits = re.search(r"\d+", name)
    return float(digits.group()) if digits else 1.0


def _ratio(a: float, b: float) -> float:
    low, high = sorted((max(a, 1.0), max(b, 1.0)))
    return high / low
