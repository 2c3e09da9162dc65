"""The book's search: what readers type finds the section that answers, and leads there."""

import pytest
from built import HTML
from test_pages import browser, find_chromium, page, site  # noqa: F401

pytestmark = pytest.mark.browser

INDEX = HTML / "search" / "index.js"
# What readers type, and where the answer is: any of these, in the address of a result.
QUERIES = {
    # Embeddings and positions
    "why multiply embeddings by sqrt(d_model)": ("#q-scale", "#embeddings-why-multiply"),
    "embedding scaling √d_model": ("#q-scale", "#embeddings-why-multiply", "#does-the-factor"),
    "why scale embeddings in transformer": ("#q-scale", "#embeddings-why-multiply"),
    "embeddings times root d": ("#q-scale", "#embeddings-why-multiply"),
    "positional encoding added to word embedding": ("#q-position", "#q-add", "02_positions.html#"),
    "does adding position destroy the word": ("#q-position", "#does-the-sum", "#positions-what"),
    "add or concatenate positional encoding": ("#adding-or-concatenating", "#q-position", "#q-add"),
    "attention without positional encoding order": (
        "#nothing-attention",
        "#q-order",
        "#what-a-stack",
    ),
    "sinusoidal positional encoding why sine and cosine": (
        "#sinusoids",
        "-sinusoidal",
        "#q-position",
    ),
    "learned positional embeddings": (
        "#a-learned-table",
        "term-learned-positions",
        "LearnedPositions",
    ),
    "rope": ("term-rotary", "#rotary-turn", "#q-rotary"),
    "rope interleaved": (
        "term-rotary",
        "positions.Rotary",
        "convert_rotary",
        "#rotary-turn",
        "02_positions",
    ),
    "extrapolate to longer sequences": ("#q-longer", "#pos-longer"),
    "inputs longer than training length": ("#q-longer", "#pos-longer"),
    "alibi slopes": ("alibi_slopes", "#alibi", "term-ALiBi"),
    "weight tying": ("term-weight-tying", "#the-other-end", "#q-tied"),
    "should input and output embeddings share weights": (
        "#the-other-end",
        "term-weight-tying",
        "#q-tied",
    ),
    # Queries, keys, values
    "where do W_Q W_K W_V come from": ("#q-origin", "#queries-keys-values-where"),
    "how are WQ and WK learned": (
        "#q-origin",
        "#q-backprop",
        "#q-network",
        "#measure-one-loss",
        "#q-train",
    ),
    "query key value explained": ("term-query-key-value", "#q-qkv", "03_queries_keys_values.html#"),
    "is there a separate network for q k v": ("#q-network", "#q-origin"),
    "are W_Q W_K W_V embeddings": ("#q-train", "#so-is-w-q"),
    "difference between embedding and query matrix": ("#q-train", "#so-is-w-q"),
    "what if q = k": ("#q-identity", "#q-equal", "#what-if-w-q-w-k"),
    "identity matrix instead of query key value": ("#q-identity", "#what-if-all-three"),
    "can I remove the key matrix": ("#can-w-k", "#q-leave", "#q-identity"),
    "why two matrices instead of one W_Q W_K^T": ("#why-a-product", "#q-product"),
    "cross attention": ("#cross-attention", "term-cross-attention", "#q-cross"),
    "bias in query key value projection": ("#which-biases", "#biases-why", "#why-is-the-bias"),
    # Attention weights and masks
    "why divide by sqrt d_k": ("#q-root-dk", "#attention-weights-why"),
    "scaled dot product attention why scaling": (
        "#q-root-dk",
        "#attention-weights-why",
        "scaled_dot",
    ),
    "softmax saturates large logits": (
        "#measure-saturation",
        "#q-root-dk",
        "#aw-whose",
        "#which-gradients",
    ),
    "vanishing gradient softmax": ("#which-gradients", "#bp-vanish", "#q-root-dk"),
    "attention weights vs network weights": ("#two-things", "term-attention-weights", "#q-weights"),
    "attention as graph neural network": ("#build-the-graph", "message-passing", "#q-graph"),
    "causal mask": ("term-causal-mask", "causal_mask", "#q-causal", "#aw-masks"),
    "attention nan": ("#a-row-with-no-edge", "#q-nan", "#q-mask", "#a-row-with-nothing"),
    "nan after masking a whole row": (
        "#a-row-with-no-edge",
        "#q-nan",
        "#q-mask",
        "#a-row-with-nothing",
    ),
    "-inf or -1e9 mask": ("#q-mask", "#q-minus", "#aw-masks", "04_attention_weights.html#"),
    "attention mask true or false": ("#whose-true", "#q-true", "#q-mask"),
    "key padding mask": ("padding_mask", "#q-mask", "term-padding", "#whose-true", "#q-true"),
    "quadratic memory cost": ("#cost-a-table", "#q-memory", "#q-quadratic"),
    "are attention weights explanations": ("#what-the-weights-mean", "#q-explain"),
    "attention dropout": ("#dropout-on", "term-dropout", "#q-dropout"),
    # Heads
    "why do heads share the same matrix": ("#q-shared", "#many-heads-do", "#the-code-in"),
    "multi head attention nn.Linear(head_dim, head_dim)": ("#q-shared", "#the-code-in"),
    "do all heads learn the same thing": ("#q-specialize", "#measure-do-heads", "#q-shared"),
    "why different heads learn different patterns": ("#q-specialize", "#measure-do-heads"),
    "how many heads": ("#measure-how-many-heads", "#q-heads"),
    "grouped query attention": ("grouped-query", "#sharing-on-purpose", "#q-gqa"),
    "multi query attention": ("multi-query", "#sharing-on-purpose", "#q-gqa"),
    "kv cache": ("key-value-cache", "KeyValueCache", "#q-cache"),
    "what does the output projection W_O do": ("#merging-what-w-o", "#q-output", "#through-w-o"),
    # Backpropagation
    "backprop through attention": ("#q-backprop", "06_backprop.html#"),
    "gradient of softmax jacobian": ("#through-the-softmax", "term-Jacobian", "softmax_"),
    "how do embeddings train compared with W_Q": (
        "#q-train",
        "#q-backprop",
        "#so-is-w-q",
        "#measure-one-loss",
    ),
    "attention in numpy from scratch": ("#measure-two-layers", "06_backprop.html#", "backprop"),
    # Initialization and depth
    "initialize attention weights": ("#q-init", "07_initialization.html#", "#w-q-and-w-k"),
    "how to initialise W_Q": ("#q-init", "#w-q-and-w-k", "07_initialization.html#"),
    "xavier vs kaiming": (
        "#initialization-what",
        "term-Glorot",
        "#so-does-xavier",
        "#does-xavier",
        "#q-init",
    ),
    "glorot fused qkv": ("#is-xavier-on-a-fused",),
    "pre norm vs post norm": ("#q-prenorm", "term-post-norm"),
    "layernorm before or after attention": ("#q-prenorm", "term-post-norm"),
    "oversmoothing": ("term-rank-collapse", "#q-collapse", "#measure-do-tokens", "#tokens-that"),
    "why 1/sqrt(N) residual init gpt2": (
        "#why-do-some-put",
        "#depth-why",
        "#gpt-2-s",
        "#q-depth",
        "#q-branches",
    ),
    "learning rate warm-up needed": (
        "term-warm-up",
        "#q-prenorm",
        "#measure-training-twelve",
        "#q-warm",
    ),
    "pytorch default initialization multiheadattention": ("implementations.html#", "#q-default"),
    # The package
    "load gpt2 weights huggingface": ("attnbook.convert", "other-libraries"),
    "scaled_dot_product_attention": ("attnbook.attention.scaled_dot_product_attention",),
    "MultiHeadAttention": ("attnbook.attention.MultiHeadAttention",),
    "sliding window mask": ("sliding_window_mask",),
    "generate text top_p temperature": ("LanguageModel.generate", ".sample"),
    "finite differences check gradient": (
        "finite-differences",
        "check_gradient",
        "numerical_gradient",
    ),
    # Misspelt
    "initalization of atention": ("#q-init", "07_initialization.html#", "#w-q-and-w-k"),
    "embeding multiplyed by sqrt": ("#q-scale", "#embeddings-why-multiply"),
    "postional encoding": ("#q-position", "02_positions.html#", "ositions", "#q-add"),
    "multihead atention": ("MultiHeadAttention", "05_many_heads.html#"),
}
