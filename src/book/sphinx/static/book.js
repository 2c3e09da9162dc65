// Cards of links to claims, the switch that opens all evidence, the way back, the ledger's filter.
// All of it enhances: without this script links lead to their claims and <details> open by a click.
addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector(".bd-article") ?? document.body;
  const evidence = "details:is(.evidence, .fold, .claim, .claims, .more)";
  const made = (tag, values) => Object.assign(document.createElement(tag), values);

  // The switch is remembered.
  const button = document.querySelector(".evidence-switch");
  const open = (all) => {
    for (const each of article.querySelectorAll(evidence)) each.open = all;
    button.setAttribute("aria-pressed", all);
  };
  if (button) {
    if (localStorage.getItem("evidence") === "open") open(true);
    button.addEventListener("click", () => {
      const all = button.getAttribute("aria-pressed") !== "true";
      open(all);
      localStorage.setItem("evidence", all ? "open" : "folded");
    });
  }

  // Of sayings and pitfalls, one chapter can be chosen; what a link leads to is not hidden.
  const choice = document.querySelector(".collected-choice select");
  const choose = ({ type }) => {
    if (type === "hashchange") choice.value = "";
    for (const { value } of [...choice.options].slice(1))
      document.getElementById(value).hidden = ![value, ""].includes(choice.value);
  };
  if (choice) for (const on of ["change", "hashchange"]) addEventListener(on, choose);

  // Exercises that have what is chosen in both lists; a chapter without any goes.
  const lists = document.querySelector(".choices");
  lists?.addEventListener("change", () => {
    for (const chapter of document.querySelector("table.exercises").tBodies) {
      const rows = [...chapter.rows].slice(1);
      for (const row of rows)
        row.hidden = [...lists.elements].some(({ name, value }) => value && row.dataset[name] !== value);
      chapter.hidden = rows.every((row) => row.hidden);
    }
  });

  // A question before the answer: what is chosen is marked, and what happens is told.
  document.addEventListener("click", ({ target }) => {
    const ask = target.closest(".predict");
    if (!ask || !target.matches(".options button")) return;
    for (const each of ask.querySelectorAll(".options button")) each.setAttribute("aria-pressed", each === target);
    ask.classList.add("told");
    ask.querySelector("details").open = true;
  });

  // What a link leads to is opened, lit, and says the way back.
  let back = null;
  const arrive = () => {
    back?.remove();
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let each = target; each; each = each.parentElement)
      if (each.tagName === "DETAILS") each.open = true;
    for (const fold of target.querySelectorAll(":scope > details:is(.more, .ledger)")) fold.open = true;
    target.scrollIntoView();
    if (!target.matches("details.claim") || history.length < 2) return;
    back = made("button", { type: "button", className: "claim-back", textContent: "← back to where you were" });
    back.addEventListener("click", () => history.back());
    target.append(back);
  };
  addEventListener("hashchange", arrive);
  if (location.hash) arrive();

  // A card for each link to a claim: on hover, on focus, on the first tap; Escape closes it.
  const card = made("div", { id: "claim-card", hidden: true });
  card.setAttribute("role", "tooltip");
  document.body.append(card);
  let shown = null, hovered = false;
  const hide = () => {
    shown?.removeAttribute("aria-describedby");
    card.hidden = true;
    shown = null;
  };
  const show = (link, byMouse = false) => {
    if (link === shown) return;
    hide();
    [shown, hovered] = [link, byMouse];
    const [statement, ...lines] = link.dataset.card.split(" | ");
    card.replaceChildren(made("strong", { textContent: statement }),
      ...lines.map((line) => made("span", { textContent: line })));
    card.hidden = false;
    link.setAttribute("aria-describedby", card.id);
    const box = link.getBoundingClientRect();
    const room = document.documentElement.clientWidth - card.offsetWidth - 8;
    const above = box.bottom + card.offsetHeight + 8 > innerHeight;
    card.style.left = `${Math.max(8, Math.min(box.left, room)) + scrollX}px`;
    card.style.top = `${(above ? box.top - card.offsetHeight - 6 : box.bottom + 6) + scrollY}px`;
  };
  const linkOf = (event) => event.target.closest?.("a[data-card]");
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const link = linkOf(event);
    // A key's card stays where the page scrolls under a mouse at rest.
    if (link) show(link, true);
    else if (hovered && !event.target.closest("#claim-card")) hide();
  });
  document.addEventListener("focusin", (event) => {
    const link = linkOf(event);
    if (link) show(link);
    else hide();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  let tapped = false;
  document.addEventListener("pointerdown", (event) => {
    // A finger's first tap shows the card, the second follows the link.
    tapped = event.pointerType === "touch" && linkOf(event) && linkOf(event) !== shown;
  });
  document.addEventListener("click", (event) => {
    const link = linkOf(event);
    if (link && tapped) {
      event.preventDefault();
      show(link);
    } else if (!link) hide();
  });

  // The ledger: filter by words and kind, which opens its folds, sort by a column.
  const form = document.querySelector(".ledger-filter");
  if (!form) return;
  const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
  const close = (text) => plain(text).replaceAll(" ", "");
  const rows = [...document.querySelectorAll("table.claims-ledger tbody tr")];
  const texts = new Map(rows.map((row) => {
    const text = `${row.id} ${row.textContent}`.toLowerCase();
    return [row, { text, words: ` ${plain(text)} `, about: row.dataset.subjects.split(" ") }];
  }));
  // What else a phrase may be called in a row: words for the same thing, or the row's subject.
  const also = new Map();
  const add = (phrase, name, is) => also.set(close(phrase), [...(also.get(close(phrase)) ?? []), { name, is }]);
  for (const group of form.dataset.same.split(";")) {
    for (const phrase of group.split("|")) {
      const found = [plain(phrase), close(phrase)].map((each) => ` ${each}`);
      // A long word is found by its beginning.
      const is = ({ words }) => found.some((each) =>
        (each.length > 5 ? [each] : [`${each} `, `${each}s `]).some((word) => words.includes(word)));
      for (const other of group.split("|")) add(other, phrase, is);
    }
  }
  for (const { value, label, dataset } of form.elements.subject.options)
    for (const phrase of value ? [label, ...dataset.also.split(", ")] : [])
      add(phrase, label, ({ about }) => about.includes(value));
  /** The phrases of a query: their words, and what else each may be called. */
  const phrases = (query) => {
    const words = query.toLowerCase().split(/\s+/), found = [];
    const others = (at, n) => also.get(close(words.slice(at, at + n).join(""))) ?? [];
    for (let at = 0, n; at < words.length; at += n) {
      for (n = 5; n > 1 && !others(at, n).length; ) n--;
      found.push({ typed: words.slice(at, at + n), others: others(at, n) });
    }
    return found;
  };
  const filter = () => {
    const asked = phrases(form.elements.words.value), names = new Map();
    const kind = form.elements.kind.value, subject = form.elements.subject.value;
    let left = 0;
    for (const row of rows) {
      const has = texts.get(row);
      const by = asked.map(({ typed, others }) =>
        typed.every((word) => has.text.includes(word)) ? "" : others.find(({ is }) => is(has))?.name);
      row.hidden = by.includes(undefined) || (kind && row.dataset.kind !== kind) ||
        (subject && !has.about.includes(subject));
      left += !row.hidden;
      if (!row.hidden) by.forEach((name) => name && names.set(close(name), `“${name}”`));
    }
    for (const table of document.querySelectorAll("table.claims-ledger"))
      table.closest("section").hidden = !table.querySelector("tbody tr:not([hidden])");
    form.querySelector("output").textContent = !left
      ? "No claim has these words."
      : `${left} of ${rows.length} claims${names.size ? `, also by ${[...names.values()].join(", ")}` : ""}`;
  };
  form.addEventListener("input", () => {
    filter();
    const asked = [...form.elements].some(({ name, value }) => name && value);
    for (const fold of document.querySelectorAll("details.ledger")) fold.open = asked;
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
  /** The number in a cell: −0.3, 1,800, 2e-7, 3.4 ± 0.1 × 10⁻⁵; of entries, how near they are. */
  const number = (text) => {
    const digits = text.replace(/^all [\d,]+ entries/, "").replaceAll("−", "-").replace(/(?<=\d),(?=\d{3})/g, "");
    const [, tens, power = ""] =
      digits.match(/(?<![\p{L}\d._])(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*±\s*<?[\d.e-]+)?(?:\s*×\s*10([⁻⁰¹²³⁴-⁹]+))?/u) ?? [];
    return tens * 10 ** power.normalize("NFKC").replace("−", "-");
  };
  for (const head of document.querySelectorAll("table.claims-ledger th")) {
    const sort = made("button", { type: "button" });
    sort.append(...head.childNodes);
    head.append(sort);
    sort.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const each of head.parentElement.children) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = head.closest("table").tBodies[0], at = head.cellIndex;
      const value = (row) => row.cells[at].textContent, isText = [0, 3].includes(at);
      const order = (a, b) => {
        const [x, y] = [a, b].map((row) => (isText ? NaN : number(value(row))));
        if (isNaN(x) !== isNaN(y)) return isNaN(x) - isNaN(y);  // what is no number stands last
        return (up ? 1 : -1) * (x - y || value(a).localeCompare(value(b), "en", { numeric: true }));
      };
      body.append(...[...body.rows].sort(order));
    });
  }
});
