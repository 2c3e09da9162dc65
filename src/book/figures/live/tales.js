// The writer of tales: tokens stream after a typed beginning, each with its probability.
live.start.tales = (element) => {
  const MOST = 200, SHOWN = 6, PACE = 20;  // tokens; alternatives; milliseconds
  const { weights, tokenizer, words } = live.files.tales, known = new Set(words);
  const model = new live.Model(weights), pieces = new live.BytePairs(tokenizer);
  const [BREAK] = pieces.encode("\n");  // stands before each tale, and so ends one
  const KS = [1, 2, 3, 5, 10, 20, 50, Infinity];

  element.querySelector(".live-body").innerHTML = `
    <div class="live-controls">
      <label>Temperature <input type="range" name="temperature" min="0" max="2" step="0.05" value="1"><output></output></label>
      <label class="live-more">Top-k <input type="range" name="top_k" min="0" max="${KS.length - 1}" value="${KS.length - 1}"><output></output></label>
      <label class="live-more">Top-p <input type="range" name="top_p" min="0.05" max="1" step="0.05" value="1"><output></output></label>
      <button type="button" name="again">Draw again</button>
    </div>
    <p class="live-label" id="live-text"><span></span> The stronger the shade, the less probable the token; choose one to see what else could stand there.</p>
    <div class="live-text" role="group" aria-labelledby="live-text"></div>
    <div class="live-likely live-choices"></div>
    <p class="live-said" role="status"></p>`;
  const part = (selector) => element.querySelector(selector);
  const input = part(".live-ask input"), text = part(".live-text"), likely = part(".live-likely");
  const knob = (name) => +part(`[name=${name}]`).value;
  const knobs = () => ({ temperature: knob("temperature"), topK: KS[knob("top_k")], topP: knob("top_p") });
  const told = (id) => (id === BREAK ? "the end" : pieces.decode([id]));

  const cache = model.newCache(), after = [];  // logits after each token that is in the cache
  let ids = [], given = 1, seed = 1, chosen = -1, writing = 0;

  /** Read up to n tokens; what is in the cache already stays. */
  const readTo = (n) => {
    while (after.length < n) after.push(model.step(ids[after.length], cache));
  };
  /** Forget all tokens from the n-th on. */
  const cut = (n) => {
    ids.length = Math.min(ids.length, n);
    after.length = Math.min(after.length, n);
    for (const { keys, values } of cache) keys.length = values.length = after.length;
  };

  const cell = (i) => {
    const p = live.softmax(after[i - 1])[ids[i]], span = document.createElement("span");
    Object.assign(span, { role: "button", textContent: told(ids[i]), title: live.percent(p), tabIndex: i === 1 ? 0 : -1 });
    span.style.setProperty("--surprise", Math.min(1, -Math.log(p) / 7).toFixed(3));
    span.classList.toggle("live-given", i < given);
    span.classList.toggle("live-end", ids[i] === BREAK);
    return span;
  };
  /** What could stand at place i, and what the knobs leave of it. */
  const look = (i) => {
    const p = live.softmax(after[i - 1]), left = live.probabilities(after[i - 1], knobs());
    const order = [...p.keys()].sort((a, b) => p[b] - p[a]).slice(0, SHOWN);
    likely.innerHTML = "<span></span><span></span><span>model</span><span>after the knobs</span>";
    likely.append(...order.map((id) => {
      const row = document.createElement("button");
      row.type = "button";
      row.dataset.id = id;
      row.classList.toggle("live-out", left[id] === 0);
      if (id === ids[i]) row.setAttribute("aria-current", "true");
      row.innerHTML = `<span></span><span class="live-bar" style="--part: ${p[id].toFixed(4)}"></span>
        <span>${live.percent(p[id])}</span><span>${left[id] ? live.percent(left[id]) : "never"}</span>`;
      row.firstChild.textContent = told(id).replace(/^ /, "·");
      return row;
    }));
    [...text.children].forEach((each, k) => (k === i - 1 ? each.setAttribute("aria-current", "true") : each.removeAttribute("aria-current")));
  };
  /** Words that are in none of its tales. */
  const comment = () => {
    const given = new Set(input.value.toLowerCase().match(/[a-z]+/g) ?? []);
    const strange = [...given].filter((word) => !known.has(word)).map((word) => `“${word}”`);
    return strange.length ? ` No tale of its training has ${strange.join(" or ")}.` : "";
  };
  const says = () => {
    const own = ids.slice(given);
    const surprise = own.reduce((sum, id, i) => sum - Math.log(live.softmax(after[given + i - 1])[id]), 0);
    const wrote = own.length ? `${own.length} tokens written; the model gave them ${(surprise / own.length).toFixed(2)} nats each. ` : "";
    part(".live-label span").textContent = "It wrote.";
    part(".live-said").textContent = `${wrote}${ids.at(-1) === BREAK ? "The tale is over. " : "It stopped at its limit. "}` +
      "Choose a token, and another below: it goes on from there." + comment();
  };

  /** Write until the tale ends, a token at a time, so that the page can answer in between. */
  const write = () => {
    clearTimeout(writing);
    part(".live-label span").textContent = "It writes.";
    part(".live-said").textContent = comment().trim();
    readTo(ids.length);
    text.replaceChildren(...ids.slice(1).map((_, i) => cell(i + 1)));
    chosen = -1;
    likely.replaceChildren();
    text.scrollTop = text.scrollHeight;
    if (ids.length > 1 && ids.at(-1) === BREAK) {
      look(ids.length - 1);
      return says();
    }
    const step = () => {
      const i = ids.length, p = live.probabilities(after[i - 1], knobs());
      ids.push(live.draw(p, live.random(1000 * seed + i)()));
      const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 9;  // a reader who scrolls up stays there
      text.append(cell(i));
      if (chosen < 0) {
        look(i);
        if (atEnd) text.scrollTop = text.scrollHeight;
      }
      const over = ids[i] === BREAK || ids.length > MOST;
      if (over) return says();
      readTo(i + 1);
      writing = setTimeout(step, PACE);
    };
    step();
  };
  const begin = () => {
    const start = [BREAK, ...pieces.encode(input.value)];
    const same = start.findIndex((id, i) => id !== ids[i]);
    cut(same < 0 ? start.length : same);
    ids = start;
    given = ids.length;
    write();
  };
  const choose = (i) => {
    chosen = i;
    look(i);
    [...text.children].forEach((each, k) => (each.tabIndex = k === i - 1 ? 0 : -1));
    text.children[i - 1].focus();
  };
  const turned = () => {
    for (const name of ["temperature", "top_k", "top_p"]) {
      const value = name === "top_k" ? KS[knob(name)] : knob(name);
      part(`[name=${name}] + output`).textContent = value === Infinity ? "all" : name === "top_k" ? value : value.toFixed(2);
    }
  };

  input.addEventListener("input", begin);
  element.querySelectorAll("[type=range]").forEach((each) => each.addEventListener("input", () => {
    turned();
    cut(given);
    write();
  }));
  part("[name=again]").addEventListener("click", () => {
    seed += 1;
    cut(given);
    write();
  });
  text.addEventListener("click", ({ target }) => {
    const i = [...text.children].indexOf(target) + 1;
    if (i > 0) choose(i);
  });
  text.addEventListener("keydown", (event) => {
    const i = [...text.children].indexOf(document.activeElement) + 1;
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 1, End: text.children.length, Enter: i, " ": i }[event.key];
    if (!i || !to || to > text.children.length) return;
    event.preventDefault();
    choose(to);
  });
  likely.addEventListener("click", ({ target }) => {
    const row = target.closest("button");
    if (!row) return;
    const i = chosen > 0 ? chosen : ids.length - 1;
    cut(i);
    ids.push(+row.dataset.id);
    given = i + 1;
    input.value = pieces.decode(ids.slice(1)).trimEnd();
    write();
  });
  turned();
  begin();
};
