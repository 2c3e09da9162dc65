"""The book's search: what readers type finds the section that answers, and leads there."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from built import HTML, violations
from PIL import Image
from playwright.sync_api import Browser, Page, expect

INDEX = HTML / "search" / "index.js"
QUESTIONS = "chapters/questions.html"
# What readers type, and where the answer is: one of these words is in the address of a result.
QUERIES = {
    # Embeddings and positions
    "why multiply embeddings by sqrt(d_model)": "#q-scale #embeddings-why-multiply",
    "embedding scaling √d_model": "#q-scale #embeddings-why-multiply #does-the-factor",
    "why scale embeddings in transformer": "#q-scale #embeddings-why-multiply",
    "embeddings times root d": "#q-scale #embeddings-why-multiply",
    "positional encoding added to word embedding": "#q-position #q-add 02_positions.html#",
    "does adding position destroy the word": "#q-position #does-the-sum #positions-what",
    "add or concatenate positional encoding": "#adding-or-concatenating #q-position #q-add",
    "attention without positional encoding order": "#nothing-attention #q-order #what-a-stack",
    "sinusoidal positional encoding why sine and cosine": "#sinusoids -sinusoidal #q-position",
    "learned positional embeddings": "#a-learned-table term-learned-positions LearnedPositions",
    "rope": "term-rotary #rotary-turn #q-rotary",
    "rope interleaved": "term-rotary positions.Rotary convert_rotary #rotary-turn 02_positions",
    "extrapolate to longer sequences": "#q-longer #pos-longer",
    "inputs longer than training length": "#q-longer #pos-longer",
    "alibi slopes": "alibi_slopes #alibi term-ALiBi",
    "weight tying": "term-weight-tying #the-other-end #q-tied",
    "should input and output embeddings share weights": "#the-other-end term-weight-tying #q-tied",
    # Queries, keys, values
    "where do W_Q W_K W_V come from": "#q-origin #queries-keys-values-where",
    "how are WQ and WK learned": (
        "#q-origin #q-backprop #q-network #measure-one-loss #q-train #q-learn"
    ),
    "query key value explained": "term-query-key-value #q-qkv 03_queries_keys_values.html#",
    "is there a separate network for q k v": "#q-network #q-origin",
    "are W_Q W_K W_V embeddings": "#q-train #so-is-w-q",
    "difference between embedding and query matrix": "#q-train #so-is-w-q #q-learn",
    "what if q = k": "#q-identity #q-equal #what-if-w-q-w-k",
    "identity matrix instead of query key value": "#q-identity #what-if-all-three",
    "can I remove the key matrix": "#can-w-k #q-leave #q-identity",
    "why two matrices instead of one W_Q W_K^T": "#why-a-product #q-product",
    "cross attention": "#cross-attention term-cross-attention #q-cross",
    "bias in query key value projection": "#which-biases #biases-why bias",
    # Attention weights and masks
    "why divide by sqrt d_k": "#q-root-dk #attention-weights-why",
    "scaled dot product attention why scaling": "#q-root-dk #attention-weights-why scaled_dot",
    "softmax saturates large logits": "#measure-saturation #q-root-dk #aw-whose #which-gradients",
    "vanishing gradient softmax": "#which-gradients #bp-vanish #q-root-dk",
    "attention weights vs network weights": "#two-things term-attention-weights #q-weights",
    "attention as graph neural network": "message-passing #q-graph",
    "causal mask": "term-causal-mask causal_mask #q-causal #aw-masks",
    "nan": "#q-nan",
    "attention nan": "#a-row-with-no-edge #q-nan #q-mask #a-row-with-nothing",
    "nan after masking a whole row": "#a-row-with-no-edge #q-nan #q-mask #a-row-with-nothing",
    "-inf or -1e9 mask": "#q-mask #q-minus #aw-masks 04_attention_weights.html#",
    "attention mask true or false": "#whose-true #q-true #q-mask",
    "key padding mask": "padding_mask #q-mask term-padding #whose-true #q-true #q-padding-masks",
    "quadratic memory cost": "#cost-a-table #q-memory #q-quadratic",
    "are attention weights explanations": "#what-the-weights-mean #q-explain",
    "attention dropout": "#dropout-on term-dropout #q-dropout",
    # Heads
    "why do heads share the same matrix": "#q-shared #many-heads-do #the-code-in",
    "multi head attention nn.Linear(head_dim, head_dim)": "#q-shared #the-code-in",
    "do all heads learn the same thing": "#q-specialize #measure-do-heads #q-shared",
    "why different heads learn different patterns": "#q-specialize #measure-do-heads",
    "how many heads": "#measure-how-many-heads #q-heads",
    "grouped query attention": "grouped-query #heads-grouped #q-mqa",
    "multi query attention": "multi-query #heads-grouped #q-mqa",
    "kv cache": "key-value-cache KeyValueCache #q-cache #q-cost-cache",
    "what does the output projection W_O do": "#merging-what-w-o #q-output #through-w-o",
    # Backpropagation
    "backprop through attention": "#q-backprop 06_backprop.html#",
    "gradient of softmax jacobian": "#through-the-softmax term-Jacobian softmax_",
    "how do embeddings train compared with W_Q": (
        "#q-learn #q-train #q-backprop #so-is-w-q #measure-one-loss"
    ),
    "attention in numpy from scratch": "#measure-two-layers 06_backprop.html# backprop",
    # Initialization and depth
    "initialize attention weights": "#q-init 07_initialization.html# #w-q-and-w-k",
    "how to initialise W_Q": "#q-init #w-q-and-w-k 07_initialization.html#",
    "xavier vs kaiming": (
        "#initialization-what term-Glorot #so-does-xavier #does-xavier #q-init #q-xavier"
    ),
    "glorot fused qkv": "#is-xavier-on-a-fused #q-fused",
    "pre norm vs post norm": "#q-prenorm term-post-norm",
    "layernorm before or after attention": "#q-prenorm term-post-norm",
    "oversmoothing": "term-rank-collapse #q-collapse #measure-do-tokens #tokens-that",
    "why 1/sqrt(N) residual init gpt2": "#why-do-some-put #depth-why #gpt-2-s #q-init-depth",
    "learning rate warm-up needed": "term-warm-up #q-prenorm #measure-training-twelve #q-warm",
    "pytorch default initialization multiheadattention": "implementations.html# #q-default",
    # Encoder and decoder
    "shifted right decoder input": "#q-shift #the-shift",
    "what is teacher forcing": "#q-teacher term-teacher-forcing",
    "loss goes to zero but output is garbage": "#q-garbage #date-patients",
    "memory_key_padding_mask": "#q-padding-masks #which-masks",
    "which encoder layer does the decoder read": "#q-memory-layer #date-memory",
    "beam search or greedy": "#q-beam #greedy-or-beams term-beam-search",
    "label smoothing": "#label-smoothing term-label-smoothing",
    "exact match and loss": "#q-exact #loss-per-token",
    "train a whole transformer": "09_transformer.html",
    # Language models
    "what loss is normal for a language model": "#q-lm-loss #what-loss-is-normal",
    "bits per character": "#q-lm-tokenizers term-bits-per-character #what-loss",
    "perplexity different tokenizers": "#q-lm-tokenizers term-perplexity",
    "is the causal mask needed at inference": "#q-lm-mask #the-cache",
    "why only the last logits": "#q-lm-last #write",
    "why does my model repeat itself": "#q-lm-repeat #write",
    "top-k or top-p": "#q-lm-knobs term-top-k #write",
    "batch of prompts with different length": "#q-lm-batch #prompts-of-different",
    "kv cache full drop oldest tokens": "#q-lm-window #cutting-the-window",
    "resume training same result": "#q-lm-resume #your-own-text api/training",
    "repetition penalty": "#lm-penalty #a-penalty-on-repetition",
    "train on my own text": "#your-own-text api/training",
    # What training puts where
    "words that appear together similar embeddings": "#q-similar #which-words",
    "static vs contextual embedding": "#q-static #one-word",
    "king minus man plus woman": "#q-analogy #king",
    "induction head": "term-induction-head #q-induction 11_what_training_puts_where",
    "attention on first token": "#q-sink term-attention-sink #is-a-weight",
    "logit lens": "term-logit-lens #q-lens logit_lens",
    "ablate attention head": "#q-ablate ablated",
    "prune attention heads": "#q-prune #how-many-heads",
    "flops of a transformer": "#q-cost-flops api/costs forward_operations",
    # What it costs
    "how much memory kv cache": "#q-cost-cache cache_bytes",
    "is attention quadratic": "#q-quadratic #which-part-grows",
    "flash attention exact": "#q-kernel #q-cost-online #how-can-a-kernel",
    "why is generation slow": "#q-cost-slow #why-is-writing-slow",
    "speculative decoding": "#q-cost-draft term-speculative-decoding #cost-draft",
    "does gqa make training faster": "#q-cost-grouped 13_what",
    "6ND training flops": "#q-cost-flops",
    "cuda graph generate": "#q-cost-slow #decoding",
    # Silent bugs
    "my model does not learn": "not_learning.html #q-not-learning",
    "loss stuck at ln vocab": "not_learning.html# #q-first-loss #q-plateau",
    "test that attention is causal": "#q-test 12_silent_bugs.html# api/doctor",
    "heads merged without transpose": "12_silent_bugs.html# #q-silent #q-reshape",
    "batch size changes the output": "not_learning.html# #q-batch",
    "diagnose my attention": "api/doctor doctor.diagnose 12_silent_bugs.html",
    # The package
    "load gpt2 weights huggingface": "#q-load attnbook.convert other-libraries #s-load",
    "scaled_dot_product_attention": "attnbook.attention.scaled_dot_product_attention",
    "MultiHeadAttention": "attnbook.attention.MultiHeadAttention",
    "sliding window mask": "sliding_window_mask",
    "generate text top_p temperature": "LanguageModel.generate .sample #q-lm-knobs",
    "finite differences check gradient": "finite-differences check_gradient numerical_gradient",
    # Misspelt
    "initalization of atention": "#q-init 07_initialization.html# #w-q-and-w-k",
    "embeding multiplyed by sqrt": "#q-scale #embeddings-why-multiply",
    "postional encoding": "#q-position 02_positions.html# ositions #q-add",
    "multihead atention": "MultiHeadAttention 05_many_heads.html#",
}

# Here the answer has to be the first result or the second.
SURE = {
    "does attention weight tell me which word mattered": "#q-explain",
    "which token is important": "#q-explain",
    "W_O leave out": "#q-output #q-without-output",
    "can I leave out W_O": "#q-output #q-without-output",
    "omit the output projection": "#q-output",
    "Hugging Face GPT-2 initial weights": "#q-default implementations.html#",
    "Hugging Face GPT-2 initialization": "#q-default implementations.html#",
    "W_Q = W_K": "#q-equal",
    "tokenizer": "tokenizer",
    "what is attention": "00_attention.html#what-does-attention-do",
    "how does self-attention work": "00_attention.html#what-does-attention-do",
    "transformer from scratch": "09_transformer.html#a-whole-transformer",
    "implement a transformer": "09_transformer.html#a-whole-transformer",
    "heads that learn the same": "#q-specialize",
    "why do my heads learn the same thing": "#q-specialize",
    "backprop by hand": "06_backprop.html#backprop-by-hand",
    "why cache K and V but not Q": "#q-cache",
    "K, V, Q of caching": "#q-cache",
    "attention sink": "term-attention-sink",
    "zero padding softmax": "#q-zero",
    "padding vectors of zeros": "#q-zero",
    "weight tying": "#q-tied term-weight-tying",
    "additive attention": "term-additive-attention",
    "Bahdanau attention": "term-additive-attention",
    "exposure bias": "#q-teacher",
    "loss low but wrong answers": "#q-exact",
}


VIEWS = [("light", 1280), ("dark", 390), ("light", 320)]
in_each_view = pytest.mark.parametrize("page", VIEWS, indirect=True, ids=str)


@pytest.fixture
def page(window: Callable[..., Page], request: pytest.FixtureRequest) -> Iterator[Page]:
    theme, width = getattr(request, "param", VIEWS[0])
    page = window(color_scheme=theme, width=width)
    page.set_default_timeout(20_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []


@pytest.fixture(scope="module")
def ranking(browser: Browser) -> Iterator[Page]:
    """An empty page with the script that ranks."""
    page = browser.new_page()
    page.add_script_tag(path=INDEX)
    yield page
    page.close()


def results(ranking: Page, queries: Iterable[str], limit: int) -> list[list[dict]]:
    script = "([queries, limit]) => queries.map((query) => searchBook(query, limit).results)"
    return ranking.evaluate(script, [list(queries), limit])


def missed(ranking: Page, wanted: dict[str, str], limit: int) -> dict[str, list[str]]:
    """The queries that do not find what they want, and what they find."""
    urls = [[each["url"] for each in found] for found in results(ranking, wanted, limit)]
    return {
        query: found
        for (query, targets), found in zip(wanted.items(), urls, strict=True)
        if not any(target in url for target in targets.split() for url in found)
    }


def search_units() -> list[list[str]]:
    """What the index holds: address, kind, title, and the words of each unit."""
    return json.loads(re.search(r"const UNITS = (.*);\n", INDEX.read_text("utf-8"))[1])


def test_readers_words_find_the_section(ranking):
    assert len(QUERIES) >= 60
    failed = missed(ranking, QUERIES, limit=3)
    assert len(failed) <= 0.1 * len(QUERIES), failed
    assert missed(ranking, SURE, limit=2) == {}


ASKED = json.loads((Path(__file__).parent / "asked.json").read_text(encoding="utf-8"))


def test_what_people_asked_in_public_is_found_in_their_words(ranking):
    """Threads on public pages: the question as it was asked, and where the book answers it."""
    assert len({each["source"] for each in ASKED}) >= 80
    wanted = QUERIES | {each["question"]: each["place"] for each in ASKED}
    failed = missed(ranking, wanted, limit=3)
    assert len(wanted) >= 150
    assert len(failed) <= 0.05 * len(wanted), failed


def test_no_query_finds_everything_and_what_is_not_there_is_not_found(ranking):
    counts = ranking.evaluate(
        "(queries) => queries.map((query) => searchBook(query, 99).results.length)",
        ["attention", "tokenizer", "zyxwvut attention", "zyxwvut"],
    )
    assert counts[0] == 20
    assert counts[1] < 15
    assert counts[2:] == [0, 0]


def test_a_question_shows_its_answer_and_leads_to_its_heading(ranking):
    found = [each for some in results(ranking, [*QUERIES, *SURE], 20) for each in some]
    questions = {each["url"]: each for each in found if each["kind"] == "question"}
    answer = "".join(words for words, _ in questions[f"{QUESTIONS}#q-explain"]["excerpt"])
    assert answer == "They show where it looks, not that it is right to look there."
    assert {each["fragment"] for each in questions.values()} == {""}


def test_what_is_shown_stands_on_the_page_outside_folds_tables_and_pictures(page, site):
    """Sentences as they are shown, where their page has them; formulas read differently there."""
    units = search_units()
    for name in (QUESTIONS, "chapters/08_depth.html", "chapters/implementations.html"):
        page.goto(site + name)
        shown = page.evaluate(
            "() => { const article = document.querySelector('article').cloneNode(true);"
            "const apart = article.querySelectorAll('details:not(.more), table, .picture');"
            "apart.forEach((each) => each.remove());"
            "return article.textContent.replace(/\\s+/g, ' '); }"
        )
        lines = [
            re.sub(r"\s+", " ", run).strip()
            for url, _, _, _, text, _ in units
            if url.startswith(name)
            for run in re.split("\N{WORD JOINER}[^\N{WORD JOINER}]*\N{WORD JOINER}|\n", text)
        ]
        assert [line for line in lines if line not in shown] == []
        assert len(lines) > 50
    cited = [unit[4] for unit in units if "Wiegreffe and Pinter [2019]" in unit[4] + unit[5]]
    assert cited


def test_the_title_of_a_section_finds_it(ranking):
    units = search_units()
    sections = {unit[2]: unit[0] for unit in units if unit[1] in ("section", "question")}
    often = Counter(unit[2] for unit in units)  # "Pitfalls" are in each chapter
    titles = [title for title in sections if often[title] == 1]
    failed = missed(ranking, {title: sections[title] for title in titles}, limit=3)
    assert len(titles) >= 25
    assert len(failed) <= 0.05 * len(titles), failed


def test_every_result_leads_to_a_target():
    units = search_units()
    ids: dict[str, set[str]] = {}
    for url, *_ in units:
        page, _, anchor = url.partition("#")
        if page not in ids:
            ids[page] = set(re.findall(r' id="([^"]+)"', (HTML / page).read_text("utf-8")))
        assert anchor in ids[page], url


def test_the_search_is_small_and_only_loaded_when_used(page, site):
    assert len(gzip.compress(INDEX.read_bytes(), 9)) <= 330_000
    assert (HTML / "_static" / "search.js").stat().st_size <= 8_192
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site + QUESTIONS)
    assert [
        url for url in asked if re.search(r"search(index|tools)|language_data|highlight", url)
    ] == []
    assert [url for url in asked if "search/index.js" in url] == []
    page.keyboard.press("Control+k")
    page.wait_for_function("() => globalThis.searchBook")


def search(page: Page, query: str) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type(query)
    page.locator(".search-results a").first.wait_for()


def shows_a_mark(page: Page) -> bool:
    """Does the page, within some seconds, show the colour of a sentence that a result led to?"""
    for _ in range(20):
        screen = np.asarray(Image.open(BytesIO(page.screenshot())).convert("RGB"))
        if (screen == (255, 224, 138)).all(-1).sum() > 200:
            return True
        page.wait_for_timeout(250)
    return False


@in_each_view
def test_a_result_leads_to_the_marked_sentence(page, site):
    from_disk = page.viewport_size["width"] == 390
    page.goto((f"{HTML.as_uri()}/" if from_disk else site) + "intro.html")
    search(page, "where do W_Q W_K come from")
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text(re.compile(r"\d+ result"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".search-results a").nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(re.escape(QUESTIONS) + "#q-origin"))
    expect(page.locator("#q-origin")).to_be_in_viewport()
    # And within the page that is open.
    search(page, "does Xavier keep the variance in attention")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.wait_for_url(re.compile(r"#.*xavier"))
    # In a chapter, the sentence is marked.
    search(page, "sharing on purpose")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("05_many_heads.html#heads-grouped"))
    assert shows_a_mark(page)


def test_a_mark_leaves_the_formulas_of_its_sentence_alone(page, site):
    name = f"{site}{QUESTIONS}#q-nan"
    page.goto(f"{name}:~:text=All%20logits%20of%20its%20row%20are,It%20happens")
    assert shows_a_mark(page)
    formula = page.locator("p:has-text('All logits of its row') .formula").first
    drawn = np.asarray(Image.open(BytesIO(formula.screenshot())).convert("RGB"))
    assert not (drawn[:, 3:-3] == (255, 224, 138)).all(-1).any()  # the words beside it are marked


@in_each_view
def test_the_dialog_keeps_the_focus_and_gives_it_back(page, site):
    page.goto(site + QUESTIONS)
    link = page.locator("main article a:visible").first
    link.focus()
    search(page, "rope")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for _ in range(25):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement.closest('dialog') || document.activeElement === document.body"
        )
    page.get_by_role("searchbox").focus()
    page.keyboard.press("Escape")
    expect(link).to_be_focused()


@in_each_view
def test_the_dialog_is_accessible(page, site):
    page.goto(site + QUESTIONS)
    search(page, "rope")
    expect(page.get_by_role("dialog", name="Search this book")).to_be_visible()
    assert violations(page, ".search-dialog") == []


def test_a_misspelt_word_finds_and_nonsense_says_so(page, site):
    page.goto(site + "search.html?q=embeding")
    expect(page.locator(".search-results mark").first).to_have_text(
        re.compile("embed", re.IGNORECASE)
    )
    page.get_by_role("searchbox").fill("zyxwvutzyxwvut")
    expect(page.get_by_role("status")).to_have_text(re.compile("Nothing found"))
    assert page.url.endswith("?q=zyxwvutzyxwvut")


def test_a_folded_target_is_opened(page, site):
    page.goto(site + QUESTIONS)
    page.evaluate(
        "() => { const fold = document.createElement('details');"
        "const section = document.getElementById('q-origin').closest('section');"
        "section.replaceWith(fold); fold.append(section); }"
    )
    page.evaluate("location.hash = '#q-origin'")
    expect(page.locator("#q-origin").locator("xpath=ancestor::details")).to_have_attribute(
        "open", ""
    )


def test_without_a_script_the_search_page_says_so(window, site):
    page = window(site + "search.html", java_script_enabled=False)
    expect(page.get_by_text("The search needs JavaScript")).to_be_visible()
